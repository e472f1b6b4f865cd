import { existsSync, readFileSync } from "node:fs";
import { type Command, Option } from "commander";
import type { Level } from "pino";
import { ConfigError } from "../config-error.ts";
import { type Database, databaseUrls, parseDatabaseUrl } from "../store/database-url.ts";
import {
  duration,
  host,
  integer,
  isLoopback,
  isSecureUrl,
  origins,
  ports,
  text,
} from "./values.ts";

/** How a server runs: the {@link settings} as they are parsed. Durations are in milliseconds, and unset ones absent. */
export interface Config
  extends Partial<Record<"databaseUrlFile" | "tlsCert" | "tlsKey" | "tlsClientCa", string>>,
    Partial<Record<"authTokensFile" | "oidcIssuer" | "oidcAudience", string>>,
    Record<"allowInsecure" | "logCalls", "true" | "false">,
    Record<"maxInFlight" | "maxConnections", number>,
    Record<"requestTimeout" | "drainDelay" | "drainTimeout", number> {
  /** Not used if `databaseUrlFile` is set. */
  database: Database;
  host: string;
  port: number[];
  corsOrigin?: string[];
  maxConnectionAge?: number;
  logLevel: Level;
}

const logLevels: Level[] = ["trace", "debug", "info", "warn", "error", "fatal"];

/** File descriptors that the process needs besides those of connections. */
const otherDescriptors = 50;

const count = integer(1, 1_000_000);

export const settings: readonly Option[] = [
  // URLs may contain passwords, so they are checked later: commander repeats values that it rejects.
  setting("--database-url <url>", String, "sqlite:data/investors.db", databaseUrls),
  setting("--database-url-file <file>", text, "", "file with the URL, which is read at startup"),
  setting("--host <host>", host, "127.0.0.1", "address to listen on"),
  setting("--port <ports>", ports, "8080", "port for all protocols, or several; 0: a free one"),
  setting("--tls-cert <file>", text, "", "PEM file of the server's certificate chain"),
  setting("--tls-key <file>", text, "", "PEM file of its private key, without a passphrase"),
  setting("--tls-client-ca <file>", text, "", "PEM file of the CAs of client certificates"),
  setting("--auth-tokens-file <file>", text, "", "file of bearer tokens, one caller a line"),
  setting("--oidc-issuer <url>", String, "", "URL of the issuer of access tokens to accept"),
  setting("--oidc-audience <audience>", text, "", "audience of these access tokens"),
  setting("--cors-origin <origins>", origins, "", "origins whose pages may call; * for all"),
  flag("--allow-insecure", "listen beyond loopback even without TLS, authentication or both"),
  setting("--max-in-flight <calls>", count, "1024", "maximum number of calls in flight"),
  setting("--max-connections <n>", count, "1024", "maximum number of open connections"),
  setting("--request-timeout <duration>", duration(1), "10s", "timeout for a call: ms, s, m or h"),
  setting(
    "--max-connection-age <duration>",
    duration(1),
    "",
    "age of a connection at which its client is asked to reconnect",
  ),
  setting("--drain-delay <duration>", duration(0), "0s", "how long to serve after /readyz fails"),
  setting("--drain-timeout <duration>", duration(0), "20s", "time for calls in flight at shutdown"),
  setting("--log-level <level>", text, "info", "lowest level to log").choices(logLevels),
  flag("--log-calls", "log every call that succeeds, with the ids of its records, for audits"),
];

/** Settings of 0.5, which still are in configurations: ignored, they would hide that nobody listens there. */
const formerPorts = ["--grpc-port <port>", "--http-port <port>"].map((flags) =>
  setting(flags, text, "", "").hideHelp(),
);

/** Adds the settings to a command. An empty environment variable counts as unset. */
export function addSettings(command: Command): void {
  for (const option of [...settings, ...formerPorts]) {
    const { envVar = "" } = option;
    if (process.env[envVar] === "") delete process.env[envVar];
    command.addOption(option);
  }
}

/**
 * Checks the settings of a parsed command, also against each other.
 *
 * @throws {ConfigError} for the first that is wrong
 */
export function readConfig(command: Command): Config {
  const set = Object.entries(command.opts()).filter(([, value]) => value !== "");
  const { databaseUrl = "", ...values } = Object.fromEntries(set) as Config & {
    databaseUrl?: string;
  };
  const { databaseUrlFile, host, tlsCert, tlsKey, tlsClientCa } = values;
  const { authTokensFile, oidcIssuer, oidcAudience, allowInsecure } = values;
  for (const { long, envVar = "" } of settings) {
    // npm keeps what stands before its "--", as options of its own.
    if (process.env[`npm_config_${envVar.toLowerCase()}`] === undefined) continue;
    throw new ConfigError(`npm took ${long}: write it after "--", as in "npm start -- ${long} …"`);
  }
  for (const option of formerPorts) {
    if (command.getOptionValue(option.attributeName()) === undefined) continue;
    throw new ConfigError(`${option.long} no longer exists: "--port" (PORT) serves all protocols`);
  }
  const database = parseDatabaseUrl("--database-url", databaseUrl);
  if (databaseUrlFile && command.getOptionValueSource("databaseUrl") !== "default") {
    throw new ConfigError("only one of --database-url and --database-url-file may be set");
  }
  if (oidcIssuer && !isIssuer(oidcIssuer)) {
    const urls = "an https URL, or an http URL of this machine";
    throw new ConfigError(`--oidc-issuer must be ${urls}, without userinfo, query and fragment`);
  }
  if (!tlsCert !== !tlsKey) throw new ConfigError("--tls-cert and --tls-key go together");
  if (!oidcIssuer !== !oidcAudience) {
    throw new ConfigError("--oidc-issuer and --oidc-audience go together");
  }
  if (tlsClientCa && !tlsCert) {
    throw new ConfigError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (values.logCalls === "true" && !["trace", "debug", "info"].includes(values.logLevel)) {
    throw new ConfigError(`--log-calls needs --log-level info or lower, not ${values.logLevel}`);
  }
  expectDescriptors(values.maxConnections);
  const isAuthenticated = authTokensFile || oidcIssuer || tlsClientCa;
  const lacking = [
    !tlsCert && "encrypted (--tls-cert, --tls-key)",
    !isAuthenticated && "authenticated (--auth-tokens-file, --oidc-issuer or --tls-client-ca)",
  ].filter(Boolean);
  if (lacking.length > 0 && !isLoopback(host) && allowInsecure === "false") {
    throw new ConfigError(
      `--host ${host} is not a loopback address, and calls are not ` +
        `${lacking.join(" and not ")}; set --allow-insecure to listen there anyway`,
    );
  }
  return { ...values, database };
}

/**
 * Without a free file descriptor, a connection cannot even be accepted to replace another.
 *
 * @throws {ConfigError} their limit, where /proc shows it, leaves fewer than the connections may need
 */
function expectDescriptors(maxConnections: number): void {
  const file = "/proc/self/limits";
  const limits = existsSync(file) ? readFileSync(file, "utf8") : "";
  const limit = Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Number.POSITIVE_INFINITY);
  const needed = maxConnections + otherDescriptors;
  if (limit >= needed) return;
  throw new ConfigError(
    `--max-connections ${maxConnections} needs ${needed} file descriptors, of a limit of ${limit}: ` +
      "raise it (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker)",
  );
}

/**
 * The variables that are no settings, but differ from one by a single letter or underscore, and that one. HOST and PORT
 * are too like others, such as POST.
 */
export function findMisspelled(): (readonly [name: string, meant: string])[] {
  const known = settings.flatMap(({ envVar = "" }) => envVar);
  return Object.keys(process.env)
    .filter((name) => /^[A-Z_]+$/.test(name) && !known.includes(name))
    .flatMap((name) =>
      known
        .filter((each) => each.length > 4 && differByOne(name, each))
        .map((each) => [name, each] as const),
    );
}

/** Whether two different texts are the same but for one character that is added, left out or replaced. */
function differByOne(one: string, other: string): boolean {
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const [left, right] = [one.slice(same), other.slice(same)];
  return left.slice(1) === right || left === right.slice(1) || left.slice(1) === right.slice(1);
}

/** Names each setting in a message by its flag or, if that is how it was set, by its variable. */
export function nameAsGiven(message: string, command: Command): string {
  return message.replace(/(?<=^|[ (])--[a-z-]+/g, (flag) => {
    const option = command.options.find(({ long }) => long === flag);
    const source = option && command.getOptionValueSource(option.attributeName());
    return (source === "env" && option?.envVar) || flag;
  });
}

/** Whether a URL can be an issuer's: its keys must come securely from that very URL. */
function isIssuer(text: string): boolean {
  const { href, origin = "", pathname = "" } = URL.parse(text) ?? {};
  return isSecureUrl(text) && href === origin + pathname && !/\p{Cc}/u.test(text);
}

function setting(flags: string, read: (value: string) => unknown, fallback: string, help: string) {
  const option = new Option(flags, help);
  option.argParser((value) => (value === "" && fallback === "" ? value : read(value)));
  if (fallback !== "") option.default(read(fallback), fallback);
  return option.env(option.name().replaceAll("-", "_").toUpperCase());
}

function flag(name: string, help: string): Option {
  return setting(`${name} [boolean]`, text, "false", help)
    .choices(["true", "false"])
    .preset("true");
}
