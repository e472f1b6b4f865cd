import { accessSync, constants } from "node:fs";
import { flushCompileCache } from "node:module";
import { constants as system } from "node:os";
import { isatty } from "node:tty";
import { Command, Option } from "commander";
import type { Logger } from "pino";
import { ConfigError } from "./config-error.ts";
import { createLog } from "./log.ts";
import type { RunningServer } from "./server.ts";
import { addSettings, findMisspelled, nameAsGiven, readConfig } from "./settings/config.ts";
import { reloadIntervalMs } from "./settings/reloaded-files.ts";
import { duration } from "./settings/values.ts";
import { openStandardError } from "./standard-error.ts";
import { withoutSecrets } from "./store/database-url.ts";
import { FilesGoneError } from "./store/store.ts";
import { readBuild } from "./version.ts";

/** A repeat within this time counts as the same signal, in milliseconds. */
const repeatedSignalMs = 1_000;

/** How long a copy may take to finish pending work after a signal, in milliseconds. */
const stopMs = 5_000;

/** The exit status that tells a supervisor not to restart, which would create a new, empty file. */
const filesGoneStatus = 3;

/** The name of the command, or a flag. */
const [firstArgument = "serve"] = process.argv.slice(2);

/** Whether it prints for people what is found, of which no line may be missing. */
const isForPeople = ["copy", "remove"].includes(firstArgument);

const stderr = openStandardError(isForPeople ? 8 * 1024 ** 2 : 64 * 1024);
const isTerminal = isatty(2);
const { JOURNAL_STREAM: journal } = process.env;

const { version, commit } = readBuild();
const program = new Command("investor-records")
  .description("Keeps investor records for backend services.")
  .version(commit ? `${version} (${commit})` : version)
  .configureOutput({
    outputError: (text) =>
      complain(
        text
          .replaceAll(/mongodb(\+srv)?:\/\/[^'"]+|\w+:\/\/[^'"]+@[^'"]+/gi, withoutSecrets)
          .trim(),
      ),
  })
  .exitOverride((error) => (error.exitCode === 0 ? process.exit(0) : exit(2)));

const serve = program
  .command("serve", { isDefault: true })
  .description(
    "Serve records until SIGTERM or SIGINT; the default command. For its settings: help serve",
  )
  .action(() => runServer().catch(exitIfMisconfigured));
addSettings(serve);

program
  .command("copy")
  .description("Copy records between SQLite files, MongoDB and NDJSON files.")
  .argument(
    "<from>",
    "sqlite:PATH, mongodb://HOST, env:NAME of a variable with such a URL, PATH.ndjson, or - for standard input",
  )
  .argument("[to]", "the same; - is standard output")
  .option("--check", "only read FROM, and name each line or record that is wrong")
  .action(async (from: string, to: string | undefined, { check }: { check?: boolean }) => {
    if (check && to !== undefined) program.error("error: --check takes no argument 'to'");
    if (!check && to === undefined) program.error("error: missing required argument 'to'");
    const { runCopy } = await import("./copy/copy.ts");
    const stop = new AbortController();
    const { signal } = stop;
    onSignals(["SIGINT", "SIGTERM", "SIGHUP"], (name) => {
      stop.abort(name);
      setTimeout(() => {
        say(`stopped by ${name}, without waiting for pending work`);
        exit(statusOf(name));
      }, stopMs);
    });
    const options = { from, to, environment: process.env, signal, say };
    const isWhole = await runCopy(options).catch(exitIfMisconfigured);
    exit(isWhole ? 0 : signal.aborted ? statusOf(signal.reason) : 1);
  });

program
  .command("remove")
  .description("Remove one record from a database, also while a service uses it.")
  .argument("<database>", "sqlite:PATH, mongodb://HOST, or env:NAME of a variable with such a URL")
  .argument("<id>", "the id of the record")
  .addOption(
    new Option("--wait <duration>", "how long to wait for processes that use an SQLite file")
      .argParser(duration(0))
      .default(30_000, "30s"),
  )
  .option(
    "--vacuum",
    "rewrite the whole SQLite file, whose free space may hold copies; creates wait for it",
  )
  .action(async (database: string, id: string, flags: { wait: number; vacuum?: boolean }) => {
    const { runRemove } = await import("./remove.ts");
    for (const name of ["SIGINT", "SIGTERM"] as const) {
      process.removeAllListeners(name);
      // Without a listener, a signal ends the process even while SQLite waits, but not process 1.
      if (process.pid === 1) process.on(name, () => exit(statusOf(name)));
    }
    const { wait: waitMs, vacuum = false } = flags;
    const options = { database, id, environment: process.env, waitMs, vacuum, say };
    exit((await runRemove(options).catch(exitIfMisconfigured)) ? 0 : 1);
  });

// Commander would treat an unknown command as an argument of the default one.
const commands = program.commands.map((each) => each.name());
if (!firstArgument.startsWith("-") && ![...commands, "help"].includes(firstArgument)) {
  program.error(
    `error: unknown command ${JSON.stringify(firstArgument)}; the commands are ${commands.join(", ")} and help`,
  );
}
await program.parseAsync();

function exitIfMisconfigured(error: unknown): never {
  if (!(error instanceof ConfigError)) throw error;
  complain(`error: ${nameAsGiven(error.message, serve)}`);
  return exit(2);
}

/** Reports an invalid setting or argument: as JSON, where the service would log. */
function complain(text: string): void {
  if (isTerminal || isForPeople) {
    say(text);
    return;
  }
  const log = createLog(stderr, { level: "fatal", journal });
  log.fatal(withoutControls(text.replace(/^error: /, "")));
}

async function runServer(): Promise<void> {
  const config = readConfig(serve);
  const format = isTerminal ? (await import("pino-pretty")).prettyFactory({}) : undefined;
  const log = createLog(stderr, { level: config.logLevel, journal, format });
  stderr.onRoom = (dropped) => {
    log.warn({ dropped }, "log lines were dropped, since they could not be written");
  };
  for (const [name, meant] of findMisspelled()) {
    log.warn(`the variable ${name} is no setting, and ignored: is it meant to be ${meant}?`);
  }
  const exitFatally = (error: unknown): never => {
    log.fatal({ err: error }, error instanceof Error ? error.message : String(error));
    return exit(error instanceof FilesGoneError ? filesGoneStatus : 1);
  };
  // Unhandled rejections arrive here too.
  process.on("uncaughtException", exitFatally);

  const { startServer } = await import("./server.ts");
  let server: RunningServer | undefined;
  const starting = startServer(config, log, exitFatally, () => stderr.dropped);
  stopOnSignal(() => server, log);
  server = await starting.catch((error: Error) => {
    if (error instanceof ConfigError) throw error;
    log.fatal(error.message);
    return exit(1);
  });
  keepReloaded(server, log);
  const { ports } = server;
  const host = config.host.includes(":") ? `[${config.host}]` : config.host;
  const scheme = config.tlsCert === undefined ? "http" : "https";
  const urls = ports.map((port) => `${scheme}://${host}:${port}`);
  log.info({ ports }, `serving ${server.database} on ${urls.join(" and ")}`);
}

/** Re-reads the files of settings when they change, and on SIGHUP. */
function keepReloaded(server: RunningServer, log: Logger): void {
  let last = Promise.resolve();

  /** In sequence, so that the last reading is the one in use. */
  function reloadNext(isPeriodic: boolean): void {
    last = last.then(async () => {
      const { reloaded, errors } = await server.reload(isPeriodic);
      for (const { message } of errors) {
        log.error(`${nameAsGiven(message, serve)}; the previous one stays in use`);
      }
      if (reloaded.length > 0) log.info(`reloaded ${reloaded.join(" and ")}`);
      else if (errors.length === 0 && !isPeriodic) log.info("nothing to reload");
    });
  }

  setInterval(reloadNext, reloadIntervalMs, true).unref();
  process.on("SIGHUP", () => {
    // A closing terminal sends SIGHUP too.
    if (isTerminal && !isatty(2)) process.kill(process.pid, "SIGTERM");
    else reloadNext(false);
  });
}

function stopOnSignal(running: () => RunningServer | undefined, log: Logger): void {
  const stop = async (signal: NodeJS.Signals) => {
    const server = running();
    if (server === undefined) {
      log.warn(`ended by ${signal} before it was ready`);
      return killSelf();
    }
    log.info(`shutting down on ${signal}`);
    const unfinished = await server.stop();
    if (unfinished === undefined) log.info("stopped");
    else log.warn(`stopped, and ${unfinished}`);
    exit(unfinished === undefined ? 0 : 1);
  };
  onSignals(["SIGTERM", "SIGINT"], stop, (signal) => {
    log.warn(`stopped at once, by a second signal (${signal})`);
  });
}

/** Calls back at the first of these signals; a second one ends the process at once. */
function onSignals(
  signals: NodeJS.Signals[],
  onFirst: (signal: NodeJS.Signals) => void,
  onSecond: (signal: NodeJS.Signals) => void = () => {},
): void {
  let first: { signal: NodeJS.Signals; at: number } | undefined;
  for (const signal of signals) {
    const earlier = process.listeners(signal);
    process.on(signal, () => {
      if (first === undefined) {
        first = { signal, at: performance.now() };
        onFirst(signal);
        return;
      }
      // A terminal signals npm too, which forwards the signal: one Ctrl-C arrives twice.
      if (signal === first.signal && performance.now() - first.at < repeatedSignalMs) return;
      onSecond(signal);
      killSelf();
    });
    // Removed last: without any listener, Node.js drops signals that have arrived meanwhile.
    for (const listener of earlier) process.off(signal, listener);
  }
}

/** Ends the process once all its output is written, or nobody reads it. */
function exit(status: number): never {
  stderr.flush();
  // A normal exit would do this.
  flushCompileCache();
  return endAtOnce(status);
}

function killSelf(): never {
  process.kill(process.pid, "SIGKILL");
  // PID 1 of a container cannot kill itself like that.
  return endAtOnce(statusOf("SIGKILL"));
}

/**
 * Ends the process by replacing it with another program that exits with the status: a normal exit
 * would wait for libuv's threads, which may be blocked by a FIFO, a name server or a disk.
 */
function endAtOnce(status: number): never {
  const { execPath } = process;
  // Without NODE_OPTIONS, which could load anything.
  const { LD_LIBRARY_PATH = "" } = process.env;
  const programs: [string, ...string[]][] = [
    // First, since it takes a fortieth of the time, in which a signal would be the status.
    ["/bin/sh", "-c", `exit ${status}`],
    [execPath, "-e", `process.exit(${status})`],
  ];
  for (const program of programs) {
    try {
      accessSync(program[0], constants.X_OK);
      process.execve?.(program[0], program, { LD_LIBRARY_PATH });
    } catch {
      // An image may lack a shell, an upgrade have removed Node.js, and `--permission` forbid both.
    }
  }
  process.exit(status);
}

/** The exit status by which shells report a signal. */
function statusOf(signal: NodeJS.Signals): number {
  return 128 + system.signals[signal];
}

/** Prints a line for the user, without waiting for a reader. */
function say(line: string): void {
  stderr.write(`${withoutControls(line)}\n`);
}

/** Replaces control characters, which could move the cursor: paths and settings can contain any. */
function withoutControls(text: string): string {
  return text.replaceAll(/\p{Cc}/gu, " ");
}
