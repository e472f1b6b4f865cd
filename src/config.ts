import { isIP } from "node:net";
import type { Level } from "pino";
import { isDatabaseUrl } from "./database-url.ts";

/** Reads the text of a setting, or throws a {@link ConfigError} that says what its flag accepts. */
type Check = (text: string, flag: string) => unknown;

const levels: Level[] = ["trace", "debug", "info", "warn", "error", "fatal"];

const databaseUrls =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST or mongodb+srv://HOST";

/**
 * All settings by their flags, each with its argument in the help, its check, its default and
 * its help. Each can also be set by its {@link environmentName}.
 */
export const settings = {
  "--database-url": [
    "<url>",
    databaseUrl,
    "sqlite:data/investors.db",
    `the database: ${databaseUrls}`,
  ],
  "--host": [
    "<host>",
    host,
    "127.0.0.1",
    "the address to listen on; beyond loopback, TLS and authentication are required",
  ],
  "--grpc-port": [
    "<port>",
    integer(0, 65_535),
    "50051",
    "the port for gRPC, Connect and gRPC-Web, over HTTP/2 only; 0 for a free one",
  ],
  "--http-port": [
    "<port>",
    integer(0, 65_535),
    "8080",
    "the port for JSON, Connect and gRPC-Web, with TLS also gRPC; 0 for a free one",
  ],
  "--tls-cert": ["<file>", optional(text), "", "PEM file of the server's certificate chain"],
  "--tls-key": ["<file>", optional(text), "", "PEM file of its private key, without a passphrase"],
  "--tls-client-ca": ["<file>", optional(text), "", "PEM file of the CAs of client certificates"],
  "--auth-tokens-file": [
    "<file>",
    optional(text),
    "",
    "file of bearer tokens; a line is a name, a token and optionally its scopes",
  ],
  "--oidc-issuer": [
    "<url>",
    optional(issuer),
    "",
    "URL of the issuer of access tokens to accept: https, or http on loopback",
  ],
  "--oidc-audience": ["<audience>", optional(text), "", "the audience of these access tokens"],
  "--cors-origin": [
    "<origins>",
    origins,
    "",
    "the origins whose pages may call, separated by commas; * for all",
  ],
  "--allow-insecure": [
    "[boolean]",
    oneOf(["true", "false"]),
    "false",
    "listen beyond loopback even without TLS, authentication or both; whatever is configured stays in force",
  ],
  "--max-in-flight": [
    "<calls>",
    integer(1, 1_000_000),
    "1024",
    "maximum number of calls in flight; one authenticated caller gets at most 7/8 of them; calls beyond that are refused",
  ],
  "--max-connections": [
    "<n>",
    integer(1, 1_000_000),
    "1024",
    "maximum number of open connections on both ports together; beyond that, the one idle longest is closed",
  ],
  "--request-timeout": [
    "<duration>",
    duration(1),
    "10s",
    "timeout for a call, such as 500ms, 10s, 5m or 1h; a client's deadline may be sooner",
  ],
  "--max-connection-age": [
    "<duration>",
    optional(duration(1)),
    "",
    "age of a connection, ±10 %, at which its client is asked to reconnect; this spreads clients over new processes",
  ],
  "--drain-delay": [
    "<duration>",
    duration(0),
    "0s",
    "time to keep serving after /readyz starts to fail",
  ],
  "--drain-timeout": ["<duration>", duration(0), "20s", "timeout for calls in flight at shutdown"],
  "--log-level": ["<level>", oneOf(levels), "info", `lowest level to log: ${levels.join(", ")}`],
} satisfies Record<`--${string}`, [argument: string, read: Check, fallback: string, help: string]>;

type Flag = keyof typeof settings;
type Values = { [F in Flag]: ReturnType<(typeof settings)[F][1]> };

/** The flags that were given, and the environment. A flag wins. */
export interface Given {
  flags: { [F in Flag]?: string | undefined };
  environment: NodeJS.ProcessEnv;
}

/** How a server runs; durations are in milliseconds. */
export type Config = ReturnType<typeof readConfig>;

/** PEM files, read at the start and on SIGHUP; clients need no certificate without a CA file. */
export type TlsFiles = NonNullable<Config["tls"]>;

/** How callers can authenticate. */
export type AuthenticationSources = NonNullable<Config["authentication"]>;

/** The issuer and the audience of the access tokens that are accepted. */
export type OidcOptions = NonNullable<AuthenticationSources["oidc"]>;

/** A setting has a wrong value; the message names it and says what is accepted. */
export class ConfigError extends Error {
  override name = "ConfigError";
}

/** The name in the environment of the setting of a flag. */
export function environmentName(flag: string): string {
  return flag.slice(2).replaceAll("-", "_").toUpperCase();
}

/**
 * Reads the settings and checks them, also against each other.
 *
 * @throws {ConfigError} for the first that is wrong
 */
export function readConfig(given: Given) {
  const values = readValues(given);
  const { "--tls-cert": certFile, "--tls-key": keyFile, "--tls-client-ca": clientCaFile } = values;
  const { "--oidc-issuer": issuer, "--oidc-audience": audience } = values;
  const { "--auth-tokens-file": tokensFile, "--host": host } = values;
  if (!certFile !== !keyFile) throw new ConfigError("--tls-cert and --tls-key go together");
  if (!issuer !== !audience) throw new ConfigError("--oidc-issuer and --oidc-audience go together");
  const { "--grpc-port": grpcPort, "--http-port": httpPort } = values;
  if (grpcPort === httpPort && httpPort !== 0) {
    throw new ConfigError(`--grpc-port and --http-port must differ (both are ${httpPort})`);
  }
  const tls = certFile && keyFile ? { certFile, keyFile, clientCaFile } : undefined;
  const oidc = issuer && audience ? { issuer, audience } : undefined;
  if (clientCaFile && !tls) throw new ConfigError("--tls-client-ca needs --tls-cert and --tls-key");
  const authentication =
    tokensFile || oidc || clientCaFile
      ? { tokensFile, oidc, clientCertificates: clientCaFile !== undefined }
      : undefined;
  const lacking = [
    !tls && "encrypted (--tls-cert, --tls-key)",
    !authentication && "authenticated (--auth-tokens-file, --oidc-issuer or --tls-client-ca)",
  ].filter(Boolean);
  if (lacking.length > 0 && !isLoopback(host) && values["--allow-insecure"] === "false") {
    throw new ConfigError(
      `--host ${host} is not a loopback address, and calls are not ` +
        `${lacking.join(" and not ")}; set --allow-insecure to listen there anyway`,
    );
  }
  return {
    databaseUrl: values["--database-url"],
    listen: { host, grpcPort, httpPort },
    /** Calls are not encrypted if absent. */
    tls,
    /** Callers need no credentials if absent. */
    authentication,
    /** `*` stands for any. */
    corsOrigins: values["--cors-origin"],
    limits: {
      maxInFlight: values["--max-in-flight"],
      maxConnections: values["--max-connections"],
      requestTimeoutMs: values["--request-timeout"],
      maxConnectionAgeMs: values["--max-connection-age"],
    },
    drain: { delayMs: values["--drain-delay"], timeoutMs: values["--drain-timeout"] },
    logLevel: values["--log-level"],
  };
}

/** The message of a {@link ConfigError}, with the name of each setting as it was given. */
export function nameAsGiven({ message }: Error, { flags, environment }: Given): string {
  return message.replace(/(?<=^|[ (])--[a-z-]+/g, (flag) => {
    const name = environmentName(flag);
    return flags[flag as Flag] === undefined && environment[name] ? name : flag;
  });
}

/** Whether an address to listen on is reachable from this machine alone. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host);
}

/** Whether what comes from a URL comes from its host: by https, or from this machine. */
export function isSecureUrl(text: string): boolean {
  const { protocol, hostname = "" } = URL.parse(text) ?? {};
  const isOfThisMachine = isLoopback(hostname.replace(/^\[|\]$/g, ""));
  return protocol === "https:" || (protocol === "http:" && isOfThisMachine);
}

function readValues({ flags, environment }: Given): Values {
  const values = Object.entries(settings).map(([flag, [, read, fallback]]) => {
    // An environment variable that is empty counts as unset.
    const text = flags[flag as Flag] ?? (environment[environmentName(flag)] || fallback);
    // A file that a value comes from often ends in a line feed.
    if (/\p{Cc}/u.test(text)) throw new ConfigError(`${flag} must not hold control characters`);
    return [flag, read(text, flag)];
  });
  return Object.fromEntries(values);
}

function optional<T>(read: (text: string, flag: string) => T) {
  return (text: string, flag: string) => (text === "" ? undefined : read(text, flag));
}

function text(text: string, flag: string): string {
  if (text === "") throw new ConfigError(`${flag} must not be empty`);
  return text;
}

function host(text: string, flag: string): string {
  if (isIP(text) !== 0 || /^[^\s:/[\]]+$/.test(text)) return text;
  throw refusal(text, flag, "an address or a name, without brackets and port");
}

function databaseUrl(text: string, flag: string): string {
  if (isDatabaseUrl(text)) return text;
  // The value may hold a password, and is not repeated.
  throw new ConfigError(`${flag} must be ${databaseUrls}`);
}

function issuer(text: string, flag: string): string {
  const { href, origin = "", pathname = "" } = URL.parse(text) ?? {};
  // The keys of the issuer must come from itself.
  if (isSecureUrl(text) && href === origin + pathname) return text;
  // The value may hold a password, and is not repeated.
  const urls = "an https URL, or an http URL of this machine";
  throw new ConfigError(`${flag} must be ${urls}, without user, query and fragment`);
}

function origins(text: string, flag: string): string[] {
  const all = text
    .split(",")
    .filter(Boolean)
    .map((each) => each.trim());
  if (all.every((each) => each === "*" || URL.parse(each)?.origin === each)) return all;
  throw refusal(text, flag, "* or origins such as https://app.example, separated by commas");
}

function integer(min: number, max: number) {
  return (text: string, flag: string): number => {
    const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    throw refusal(text, flag, `a whole number from ${min} to ${max}`);
  };
}

/** Reads a time in milliseconds, up to the longest that a timer of Node.js can wait. */
function duration(min: 0 | 1) {
  const msByUnit: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };
  return (text: string, flag: string): number => {
    const [, amount, unit = ""] = /^(\d{1,9})(ms|s|m|h)$/.exec(text) ?? [];
    const value = Number(amount) * (msByUnit[unit] ?? Number.NaN);
    if (value >= min && value < 2 ** 31) return value;
    const least = min === 0 ? "0s" : "1ms";
    throw refusal(text, flag, `a duration such as 500ms, 10s, 5m or 1h (${least} to 24 days)`);
  };
}

function oneOf<T extends string>(choices: readonly T[]) {
  return (text: string, flag: string): T => {
    const choice = choices.find((each) => each === text);
    if (choice !== undefined) return choice;
    throw refusal(text, flag, `one of ${choices.join(", ")}`);
  };
}

function refusal(text: string, flag: string, accepted: string): ConfigError {
  return new ConfigError(`${flag} must be ${accepted}, not ${JSON.stringify(text)}`);
}
