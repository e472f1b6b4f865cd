import type { Level } from "pino";

/** What can be set, each as its flag or environment variable gives it. */
export interface Settings {
  databaseUrl: string;
  host: string;
  grpcPort: string;
  httpPort: string;
  tlsCert?: string | undefined;
  tlsKey?: string | undefined;
  tlsClientCa?: string | undefined;
  authTokensFile?: string | undefined;
  oidcIssuer?: string | undefined;
  oidcAudience?: string | undefined;
  corsOrigin?: string | undefined;
  allowInsecure: string;
  maxInFlight: string;
  requestTimeout: string;
  maxConnectionAge?: string | undefined;
  drainDelay: string;
  drainTimeout: string;
  logLevel: string;
}

/** How a server runs; durations are in milliseconds. */
export interface Config {
  databaseUrl: string;
  host: string;
  grpcPort: number;
  httpPort: number;
  /** The files to encrypt with; calls are not encrypted if absent. */
  tls: TlsFiles | undefined;
  /** The ways to tell who calls; nobody has to say if there is none. */
  authentication: AuthenticationSources;
  /** The origins whose pages may call by HTTP; `*` stands for any. */
  corsOrigins: string[];
  maxInFlight: number;
  requestTimeoutMs: number;
  maxConnectionAgeMs: number | undefined;
  drainDelayMs: number;
  drainTimeoutMs: number;
  logLevel: Level;
}

/** Files in PEM, read at the start and again on SIGHUP. */
export interface TlsFiles {
  certFile: string;
  keyFile: string;
  /** The authorities whose client certificates are accepted; none are asked for if absent. */
  clientCaFile: string | undefined;
}

/** By what a caller can show who it is. */
export interface AuthenticationSources {
  tokensFile: string | undefined;
  oidc: OidcOptions | undefined;
  clientCertificates: boolean;
}

/** Whose access tokens are accepted, and for whom they must be issued. */
export interface OidcOptions {
  issuer: string;
  audience: string;
}

/** A setting has a wrong value; the message names its flag and what is accepted. */
export class ConfigError extends Error {
  override name = "ConfigError";
}

/** The levels of the log, from the one that tells the most to none. */
export const logLevels = ["trace", "debug", "info", "warn", "error", "fatal"] as const;

const msByUnit: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };

/** The longest time that a timer of Node.js can wait, in milliseconds. */
const maxDurationMs = 2 ** 31 - 1;

/**
 * Reads the settings and checks them, also against each other.
 *
 * @throws {ConfigError} for the first that is wrong
 */
export function readConfig(settings: Settings): Config {
  const { host, databaseUrl, maxConnectionAge } = settings;
  const tls = readTls(settings);
  const authentication = {
    tokensFile: settings.authTokensFile || undefined,
    oidc: readOidc(settings),
    clientCertificates: tls?.clientCaFile !== undefined,
  };
  // Of what SQLite takes for a path, these name no file, or one with options of its own. What
  // follows two slashes alone would be a host.
  if (!/^(sqlite:(?!:|file:|\/\/(?!\/)).|mongodb(\+srv)?:\/\/[^/?]+)/.test(databaseUrl)) {
    // The value may hold a password, and is not repeated.
    throw new ConfigError(
      "--database-url must be sqlite:PATH, sqlite:///PATH from the root, or a MongoDB URL as " +
        "mongodb://HOST or mongodb+srv://HOST",
    );
  }
  const isSafe = tls !== undefined && isAuthenticating(authentication);
  if (!isSafe && !isLoopback(host) && !readBoolean("--allow-insecure", settings.allowInsecure)) {
    const lacking = [
      ...(tls === undefined ? ["encrypted (--tls-cert, --tls-key)"] : []),
      ...(isAuthenticating(authentication)
        ? []
        : ["authenticated (--auth-tokens-file, --oidc-issuer or --tls-client-ca)"]),
    ];
    throw new ConfigError(
      `--host ${host} is reachable from other machines, and calls are not ` +
        `${lacking.join(" and not ")}; say --allow-insecure to listen there all the same`,
    );
  }
  return {
    databaseUrl,
    host,
    grpcPort: readInteger("--grpc-port", settings.grpcPort, 0, 65_535),
    httpPort: readInteger("--http-port", settings.httpPort, 0, 65_535),
    tls,
    authentication,
    corsOrigins: (settings.corsOrigin ?? "").split(",").filter(Boolean).map(readOrigin),
    maxInFlight: readInteger("--max-in-flight", settings.maxInFlight, 1, 1_000_000),
    requestTimeoutMs: readDuration("--request-timeout", settings.requestTimeout, 1),
    maxConnectionAgeMs: maxConnectionAge
      ? readDuration("--max-connection-age", maxConnectionAge, 1)
      : undefined,
    drainDelayMs: readDuration("--drain-delay", settings.drainDelay, 0),
    drainTimeoutMs: readDuration("--drain-timeout", settings.drainTimeout, 0),
    logLevel: readChoice("--log-level", settings.logLevel, logLevels),
  };
}

/** Whether callers have to show who they are. */
export function isAuthenticating(sources: AuthenticationSources): boolean {
  return Object.values(sources).some(Boolean);
}

/** A database URL without what it may hold of secrets. */
export function withoutSecrets(databaseUrl: string): string {
  if (!databaseUrl.startsWith("mongodb")) return databaseUrl;
  return databaseUrl.replace(/\?.*$/, "").replace(/\/\/.*@/, "//");
}

/** Whether an address to listen on is reachable from this machine alone. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host);
}

function readTls({ tlsCert, tlsKey, tlsClientCa }: Settings): TlsFiles | undefined {
  if (!tlsCert !== !tlsKey) throw new ConfigError("--tls-cert and --tls-key go together");
  if (tlsCert && tlsKey) {
    return { certFile: tlsCert, keyFile: tlsKey, clientCaFile: tlsClientCa || undefined };
  }
  if (tlsClientCa) throw new ConfigError("--tls-client-ca needs --tls-cert and --tls-key");
  return undefined;
}

function readOidc({ oidcIssuer, oidcAudience }: Settings): OidcOptions | undefined {
  if (!oidcIssuer !== !oidcAudience) {
    throw new ConfigError("--oidc-issuer and --oidc-audience go together");
  }
  if (!oidcIssuer || !oidcAudience) return undefined;
  const { protocol, hostname } = URL.parse(oidcIssuer) ?? {};
  const isEncrypted = protocol === "https:";
  // The keys of the issuer must come from itself.
  if (
    !isEncrypted &&
    !(protocol === "http:" && isLoopback((hostname ?? "").replace(/^\[|\]$/g, "")))
  ) {
    throw new ConfigError(
      `--oidc-issuer must be an https URL, or an http URL of this machine, not "${oidcIssuer}"`,
    );
  }
  return { issuer: oidcIssuer, audience: oidcAudience };
}

function readInteger(flag: string, text: string, min: number, max: number): number {
  const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
  if (value >= min && value <= max) return value;
  throw new ConfigError(`${flag} must be a whole number from ${min} to ${max}, not "${text}"`);
}

function readDuration(flag: string, text: string, min: number): number {
  const [, amount, unit = ""] = /^(\d{1,9})(ms|s|m|h)$/.exec(text) ?? [];
  const value = Number(amount) * (msByUnit[unit] ?? Number.NaN);
  if (value >= min && value <= maxDurationMs) return value;
  throw new ConfigError(
    `${flag} must be a duration such as 500ms, 10s, 5m or 1h (${min === 0 ? "0s" : "1ms"} to 24 days), not "${text}"`,
  );
}

function readOrigin(text: string): string {
  const origin = text.trim();
  if (origin === "*" || (URL.canParse(origin) && new URL(origin).origin === origin)) return origin;
  throw new ConfigError(
    `--cors-origin must be * or origins such as https://app.example, separated by commas, not "${text}"`,
  );
}

function readBoolean(flag: string, text: string): boolean {
  return readChoice(flag, text, ["true", "false"]) === "true";
}

function readChoice<T extends string>(flag: string, text: string, choices: readonly T[]): T {
  const choice = choices.find((each) => each === text);
  if (choice !== undefined) return choice;
  throw new ConfigError(`${flag} must be one of ${choices.join(", ")}, not "${text}"`);
}
