import { fstatSync, statSync } from "node:fs";
import { ConfigError } from "../config.ts";
import { isDatabaseUrl, sqlitePathOf, withoutSecrets } from "../database-url.ts";

/** One side of a copy. */
export interface Endpoint {
  /** What it is called, without what its URL may hold of secrets. */
  name: string;
  /** The file, if it is one. */
  path?: string | undefined;
  /** The descriptor of standard input or output, if it is one of them. */
  fd?: number;
  /** The database, if it is one. */
  url?: string;
}

/**
 * The time that a database may take for a batch, in milliseconds. An attempt gets a quarter,
 * which is more than an election takes by default.
 */
export const requestTimeoutMs = 60_000;

const accepted =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST, mongodb+srv://HOST, " +
  "env:NAME of a variable that holds one of these, a file PATH.ndjson, or -";

/**
 * Reads an argument.
 *
 * @param side what the argument is called
 * @throws {ConfigError} it names nothing that can be copied from or to
 */
export function readEndpoint(side: string, text: string, environment: NodeJS.ProcessEnv): Endpoint {
  // What is no name may be a URL with a password.
  const [, name] = /^env:([\w.-]+)$/.exec(text) ?? [];
  const value = name === undefined ? text : environment[name];
  if (value === undefined || (name !== undefined && !isDatabaseUrl(value))) {
    const fault = value ? "does not hold a database URL" : "is not set";
    throw new ConfigError(`${side}: the environment variable ${name} ${fault}`);
  }
  if (isDatabaseUrl(value)) {
    return { name: withoutSecrets(value), url: value, path: sqlitePathOf(value) };
  }
  if (value === "-") {
    return side === "FROM" ? { name: "standard input", fd: 0 } : { name: "standard output", fd: 1 };
  }
  // What begins like a URL is not meant as a file.
  if (value.endsWith(".ndjson") && !/^([a-z0-9+.-]+:\/\/|sqlite:)/i.test(value)) {
    return { name: value, path: value };
  }
  // The value may hold a password, and is not repeated.
  throw new ConfigError(`${side} must be ${accepted}`);
}

/** Identifies the file of an endpoint, if it is there. */
export function identifyFile({ path, fd }: Pick<Endpoint, "path" | "fd">): string | undefined {
  // Only looked at: closing an SQLite file that was opened would drop the locks on it.
  const ofPath =
    path === undefined ? undefined : statSync(path, { bigint: true, throwIfNoEntry: false });
  const file = fd === undefined ? ofPath : fstatSync(fd, { bigint: true });
  return file?.isFile() ? `${file.dev}:${file.ino}` : undefined;
}
