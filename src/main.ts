#!/usr/bin/env -S node --max-semi-space-size=8 --no-allocation-site-pretenuring
// Without the first, garbage of a long list takes 100 MB before it is collected. Without the
// second, V8 concludes from the calls that it finds under way that all of them live long, and
// needs almost twice the time to collect them.
import { readFileSync } from "node:fs";
import { Command, Option } from "commander";
import { type DestinationStream, type Logger, pino } from "pino";
import { ConfigError, logLevels, readConfig, type Settings, withoutSecrets } from "./config.ts";
import { type RunningServer, startServer } from "./server.ts";

const usageError = 2;

/** How long after the first signal to stop another one is a second one, in milliseconds. */
const secondSignalMs = 1_000;

const { version } = JSON.parse(
  readFileSync(new URL("../package.json", import.meta.url), "utf8"),
) as { version: string };

const program = new Command("investor-records")
  .description("Keeps investor records for backend services.")
  .version(version)
  .exitOverride((error) => process.exit(error.exitCode === 0 ? 0 : usageError));

program
  .command("serve", { isDefault: true })
  .description("Serve the records until SIGTERM or SIGINT.")
  .addOption(
    new Option("--database-url <url>", "where records live: sqlite:PATH or mongodb://…")
      .env("DATABASE_URL")
      .default("sqlite:data/investors.db"),
  )
  .addOption(
    new Option("--host <host>", "the address to listen on").env("HOST").default("127.0.0.1"),
  )
  .addOption(
    new Option("--grpc-port <port>", "the port for gRPC; 0 picks a free one")
      .env("GRPC_PORT")
      .default("50051"),
  )
  .addOption(
    new Option("--http-port <port>", "the port for Connect, gRPC-Web and REST; 0 picks a free one")
      .env("HTTP_PORT")
      .default("8080"),
  )
  .addOption(
    new Option("--tls-cert <file>", "the certificate chain to encrypt with, in PEM").env(
      "TLS_CERT",
    ),
  )
  .addOption(new Option("--tls-key <file>", "its private key, in PEM").env("TLS_KEY"))
  .addOption(
    new Option(
      "--tls-client-ca <file>",
      "the authorities whose client certificates are accepted, in PEM",
    ).env("TLS_CLIENT_CA"),
  )
  .addOption(
    new Option(
      "--auth-tokens-file <file>",
      "the bearer tokens that are accepted; each line a name, a token and its scopes",
    ).env("AUTH_TOKENS_FILE"),
  )
  .addOption(
    new Option("--oidc-issuer <url>", "the issuer whose access tokens are accepted").env(
      "OIDC_ISSUER",
    ),
  )
  .addOption(
    new Option("--oidc-audience <audience>", "the audience that they must be issued for").env(
      "OIDC_AUDIENCE",
    ),
  )
  .addOption(
    new Option("--cors-origin <origins>", "the origins whose pages may call by HTTP").env(
      "CORS_ORIGIN",
    ),
  )
  .addOption(
    new Option("--allow-insecure [boolean]", "listen beyond this machine all the same")
      .env("ALLOW_INSECURE")
      .preset("true")
      .default("false"),
  )
  .addOption(
    new Option("--max-in-flight <calls>", "how many calls may be inside at once")
      .env("MAX_IN_FLIGHT")
      .default("1024"),
  )
  .addOption(
    new Option("--request-timeout <duration>", "how long a call may take")
      .env("REQUEST_TIMEOUT")
      .default("10s"),
  )
  .addOption(
    new Option("--max-connection-age <duration>", "when clients are asked to connect anew").env(
      "MAX_CONNECTION_AGE",
    ),
  )
  .addOption(
    new Option("--drain-delay <duration>", "how long to serve on after telling health checks")
      .env("DRAIN_DELAY")
      .default("0s"),
  )
  .addOption(
    new Option("--drain-timeout <duration>", "how long calls may take to finish at the stop")
      .env("DRAIN_TIMEOUT")
      .default("20s"),
  )
  .addOption(
    new Option("--log-level <level>", `the least to log: ${logLevels.join(", ")}`)
      .env("LOG_LEVEL")
      .default("info"),
  )
  .action((settings: Settings) => serve(settings));

await program.parseAsync();

async function serve(settings: Settings): Promise<void> {
  const config = checkSettings(settings);
  const log = pino({ level: config.logLevel }, await openLog());
  const exitFatally = (error: unknown): never => {
    log.fatal({ err: error }, error instanceof Error ? error.message : String(error));
    process.exit(1);
  };
  process.on("uncaughtException", exitFatally);
  process.on("unhandledRejection", exitFatally);

  const starting = startServer(config, log, exitFatally);
  reloadOnSignal(starting, log);
  const server = await starting.catch((error: Error) => {
    if (error instanceof ConfigError) exitForSetting(error);
    log.fatal(error.message);
    process.exit(1);
  });
  const at = config.host.includes(":") ? `[${config.host}]` : config.host;
  const s = config.tls === undefined ? "" : "s";
  log.info(
    `serving ${withoutSecrets(config.databaseUrl)} on grpc${s}://${at}:${server.grpcPort} and http${s}://${at}:${server.httpPort}`,
  );
  stopOnSignal(server, log);
}

function checkSettings(settings: Settings) {
  try {
    return readConfig(settings);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    exitForSetting(error);
  }
}

function exitForSetting({ message }: ConfigError): never {
  process.stderr.write(`error: ${message}\n`);
  process.exit(usageError);
}

function reloadOnSignal(starting: Promise<RunningServer>, log: Logger): void {
  process.on("SIGHUP", async () => {
    const server = await starting;
    const errors = await server.reload();
    for (const { message } of errors) log.error(`${message}; what was read before stays in force`);
    if (errors.length === 0) log.info("read again what certificates and tokens are set");
  });
}

function stopOnSignal(server: RunningServer, log: Logger): void {
  const cut = new AbortController();
  let stoppingSince: number | undefined;
  const onSignal = async (signal: NodeJS.Signals) => {
    if (stoppingSince !== undefined) {
      // A terminal signals npm too, which passes it on: one Ctrl-C arrives twice.
      if (performance.now() - stoppingSince > secondSignalMs) cut.abort();
      return;
    }
    stoppingSince = performance.now();
    log.info(`stopping on ${signal}`);
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
