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
  withoutSecrets,
} from "./config.ts";
import { type RunningServer, startServer } from "./server.ts";

/** How long after the first signal to stop another one is a second one, in milliseconds. */
const secondSignalMs = 1_000;

const program = new Command("investor-records")
  .description("Keeps investor records for backend services.")
  .version(readBuild().version)
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : 2));

const serve = program
  .command("serve", { isDefault: true })
  .description("Serve the records until SIGTERM or SIGINT.")
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

// By itself it would take what is no command for an argument of the default one.
const commands = [...program.commands.map((each) => each.name()), "help"];
const [first = "serve"] = process.argv.slice(2);
if (!first.startsWith("-") && !commands.includes(first)) {
  program.error(
    `error: unknown command ${JSON.stringify(first)}; there are ${commands.join(", ")}`,
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

  const starting = startServer(config, log, exitFatally);
  reloadOnSignal(starting, log, given);
  stopOnSignal(starting, log);
  const server = await starting.catch((error: Error) => {
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
  process.on("SIGHUP", async () => {
    const server = await starting;
    const errors = await server.reload();
    for (const error of errors) {
      log.error(`${nameAsGiven(error, given)}; what was read before stays in force`);
    }
    if (errors.length === 0) log.info("read again what certificates and tokens are set");
  });
}

function stopOnSignal(starting: Promise<RunningServer>, log: Logger): void {
  const cut = new AbortController();
  let server: RunningServer | undefined;
  starting.then(
    (started) => {
      server = started;
    },
    () => {},
  );
  let stoppingSince: number | undefined;
  const onSignal = async (signal: NodeJS.Signals) => {
    if (stoppingSince !== undefined) {
      // A terminal signals npm too, which passes it on: one Ctrl-C arrives twice.
      if (performance.now() - stoppingSince > secondSignalMs) cut.abort();
      return;
    }
    stoppingSince = performance.now();
    log.info(`stopping on ${signal}`);
    // It is not ready yet, and has nothing to finish.
    if (server === undefined) process.exit(0);
    const { isClean, isClosed } = await server.stop(cut.signal);
    if (isClean && isClosed) log.info("stopped");
    else log.warn("stopped, and cut what had not finished");
    // An orderly exit would wait for the thread that writes, and that for the disk.
    if (!isClosed) process.kill(process.pid, "SIGKILL");
    process.exit(isClean ? 0 : 1);
  };
  process.on("SIGTERM", onSignal);
  process.on("SIGINT", onSignal);
}

/** Standard error: lines of JSON, or readable ones on a terminal. */
async function openLog(): Promise<DestinationStream> {
  if (!process.stderr.isTTY) return pino.destination({ dest: 2, sync: true });
  const { default: pretty } = await import("pino-pretty");
  return pretty({ destination: 2, sync: true });
}
