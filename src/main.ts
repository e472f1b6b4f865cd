import { constants } from "node:os";
import { isatty } from "node:tty";
import { Command, Option } from "commander";
import { type DestinationStream, type Logger, pino } from "pino";
import { readBuild } from "./build.ts";
import {
  ConfigError,
  environmentName,
  type Given,
  nameAsGiven,
  readConfig,
  settings,
} from "./config.ts";
import { lowerPriority } from "./copy/priority.ts";
import { withoutSecrets } from "./database-url.ts";
import type { RunningServer } from "./server.ts";

/** A signal so soon after the first, in milliseconds, is the same one again. */
const secondSignalMs = 1_000;

/** The most bytes of log lines to keep while they cannot be written; more are dropped. */
const maxUnloggedBytes = 64 * 1024;

const program = new Command("investor-records")
  .description("Keeps investor records for backend services.")
  .version(readBuild().version)
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));

const serve = program
  .command("serve", { isDefault: true })
  .description("Serve records until SIGTERM or SIGINT; the default command.")
  .configureHelp({ optionDescription: ({ description }) => description })
  .action(async () => {
    const options = serve.options.map((each) => [each.long, serve.opts()[each.attributeName()]]);
    const given: Given = { flags: Object.fromEntries(options), environment: process.env };
    try {
      await start(given);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      serve.error(`error: ${nameAsGiven(error, given)}`);
    }
  });
for (const [flag, [argument, , fallback, help]] of Object.entries(settings)) {
  const source = `${fallback && `default: ${fallback}, `}env: ${environmentName(flag)}`;
  serve.addOption(new Option(`${flag} ${argument}`, `${help} (${source})`).preset("true"));
}

const copy = program
  .command("copy")
  .description("Copy records between SQLite files, MongoDB and NDJSON files.")
  .argument(
    "<from>",
    "sqlite:PATH, mongodb://HOST, env:NAME of a variable with such a URL, PATH.ndjson, or - for standard input",
  )
  .argument("<to>", "the same; - is standard output")
  .option("--principal <name>", "the principal that the request ids in an NDJSON file belong to")
  .action(async (from: string, to: string, { principal }: { principal?: string }) => {
    lowerPriority();
    const { runCopy } = await import("./copy/command.ts");
    const { signal, exitCode } = signalToStop();
    // Progress may go unread.
    process.stderr.on("error", () => {});
    // A path can hold anything.
    const say = (line: string) =>
      void process.stderr.write(`${line.replaceAll(/\p{Cc}/gu, " ")}\n`);
    // Records that are shown on the terminal would mix with the bar.
    const terminal = process.stderr.isTTY && to !== "-" ? process.stderr : undefined;
    const options = { from, to, principal, environment: process.env, signal, say, terminal };
    try {
      const isWhole = await runCopy(options);
      process.exit(isWhole ? 0 : (exitCode() ?? 1));
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      copy.error(`error: ${error.message}`);
    }
  });

// Commander would take an unknown command for an argument of the default one.
const commands = program.commands.map((each) => each.name());
const [first = "serve"] = process.argv.slice(2);
if (!first.startsWith("-") && ![...commands, "help"].includes(first)) {
  program.error(
    `error: unknown command ${JSON.stringify(first)}; the commands are ${commands.join(", ")} and help`,
  );
}
await program.parseAsync();

async function start(given: Given): Promise<void> {
  const config = readConfig(given);
  const log = pino({ level: config.logLevel }, await openLog());
  const exitFatally = (error: unknown): never => {
    log.fatal({ err: error }, error instanceof Error ? error.message : String(error));
    process.exit(1);
  };
  process.on("uncaughtException", exitFatally);
  process.on("unhandledRejection", exitFatally);

  const { startServer } = await import("./server.ts");
  let server: RunningServer | undefined;
  const starting = startServer(config, log, exitFatally);
  reloadOnSignal(starting, log, given);
  stopOnSignal(() => server, log);
  server = await starting.catch((error: Error) => {
    if (error instanceof ConfigError) throw error;
    log.fatal(error.message);
    process.exit(1);
  });
  const { host } = config.listen;
  const at = host.includes(":") ? `[${host}]` : host;
  const s = config.tls === undefined ? "" : "s";
  log.info(
    `serving ${withoutSecrets(config.databaseUrl)} on grpc${s}://${at}:${server.grpcPort} and http${s}://${at}:${server.httpPort}`,
  );
}

function reloadOnSignal(starting: Promise<RunningServer>, log: Logger, given: Given): void {
  // One after the other, so that what was read last is what stays.
  let last: Promise<unknown> = starting;
  process.on("SIGHUP", () => {
    // A terminal that closes sends it, too.
    if (process.stderr.isTTY && !isatty(process.stderr.fd)) process.kill(process.pid, "SIGTERM");
    else last = last.then(reload, () => {});
  });

  async function reload(): Promise<void> {
    const { reloaded, errors } = await (await starting).reload();
    for (const error of errors) {
      log.error(`${nameAsGiven(error, given)}; the previous one stays in use`);
    }
    if (reloaded.length > 0) log.info(`reloaded ${reloaded.join(" and ")}`);
    else if (errors.length === 0) log.info("nothing to reload");
  }
}

function stopOnSignal(running: () => RunningServer | undefined, log: Logger): void {
  const cut = new AbortController();
  const stop = async (signal: NodeJS.Signals) => {
    log.info(`shutting down on ${signal}`);
    const server = running();
    // It is not ready yet, and has nothing to finish.
    if (server === undefined) process.exit(0);
    const { isClean, isClosed } = await server.stop(cut.signal);
    if (isClean && isClosed) log.info("stopped");
    else
      log.warn(
        isClean ? "stopped before the store had closed" : "stopped, and cut calls in flight",
      );
    if (!isClosed) {
      // An orderly exit would wait for the thread that writes, and that for the disk.
      process.kill(process.pid, "SIGKILL");
      // PID 1 of a container cannot kill itself that way.
      process.abort();
    }
    process.exit(isClean ? 0 : 1);
  };
  onSignals(["SIGTERM", "SIGINT"], stop, () => cut.abort());
}

/** Aborts at the first signal to stop; a second one ends the process at once. */
function signalToStop(): { signal: AbortSignal; exitCode(): number | undefined } {
  const stop = new AbortController();
  let exitCode: number | undefined;
  onSignals(
    ["SIGINT", "SIGTERM", "SIGHUP"],
    (signal) => {
      // As a shell reports it.
      exitCode = 128 + constants.signals[signal];
      stop.abort(signal);
    },
    () => process.exit(exitCode),
  );
  return { signal: stop.signal, exitCode: () => exitCode };
}

function onSignals(
  signals: NodeJS.Signals[],
  onFirst: (signal: NodeJS.Signals) => void,
  onSecond: () => void,
): void {
  let since: number | undefined;
  for (const signal of signals) {
    process.on(signal, () => {
      if (since === undefined) {
        since = performance.now();
        onFirst(signal);
        // A terminal signals npm too, which passes it on: one Ctrl-C arrives twice.
      } else if (performance.now() - since > secondSignalMs) {
        onSecond();
      }
    });
  }
}

/** Standard error: lines of JSON, or readable ones on a terminal. */
async function openLog(): Promise<DestinationStream> {
  if (!process.stderr.isTTY) {
    const destination = pino.destination({ dest: 2, sync: true, maxLength: maxUnloggedBytes });
    // A disk that is full must not end the service; what waits is written once there is room.
    return destination.on("error", () => {});
  }
  const { default: pretty } = await import("pino-pretty");
  return pretty({ destination: 2, sync: true });
}
