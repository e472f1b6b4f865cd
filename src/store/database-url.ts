import { ConfigError } from "../config-error.ts";
import type { Store, StoreOptions } from "./store.ts";

/** A database, as a URL names it. */
export type Database = ({ kind: "sqlite"; path: string } | { kind: "mongodb"; url: string }) & {
  /** The URL without its secrets, for messages. */
  name: string;
};

/** The forms of a database URL. */
export const databaseUrls =
  "sqlite:PATH, sqlite:///PATH for an absolute path, mongodb://HOST or mongodb+srv://HOST";

/** Forms that other programs accept after `sqlite:` but that would be part of the file's name here. */
const pathFaults: [RegExp, string][] = [
  [/^\/\/(?!\/)/, "what follows two slashes would be a host"],
  [/(^|\/)(:|file:)/i, "it names a file, not a database in memory"],
  [/^\/\.\.?\//, "after three slashes it is absolute"],
  [/\/$/, "it names a file, not a folder"],
  [/[?#]/, "it takes no options after ? or #"],
  [/%[0-9a-f]{2}/i, "it is not decoded, so write a space for %20"],
  [/(^|\/)~|\$\{|(^|\/)\$[A-Z]/, "~ and variables are not expanded"],
  [/\ufffd/, "it must be UTF-8"],
  [/^\s|\s$|^["']|["']$/, "it takes no quotes or spaces around it"],
];

/**
 * Parses the database URL of a setting or an argument.
 *
 * @param setting its name in errors
 * @param accepted the forms that an error names as accepted
 * @throws {ConfigError} what it must be; the URL, which may contain a password, is not repeated
 */
export function parseDatabaseUrl(setting: string, url: string, accepted = databaseUrls): Database {
  const [, path] = /^sqlite:(?:\/\/+(?=\/))?(.*)/s.exec(url) ?? [];
  const [, fault] = pathFaults.find(([pattern]) => path && pattern.test(path)) ?? [];
  if (fault) {
    const forms = "sqlite:PATH or sqlite:///PATH with the path as it is";
    throw new ConfigError(`${setting} must be ${forms}: ${fault}`);
  }
  if (!/^(?!.*\p{Cc})(sqlite:.|mongodb(\+srv)?:\/\/[^/?]+)/su.test(url)) {
    throw new ConfigError(`${setting} must be ${accepted}`);
  }
  if (path !== undefined) return { kind: "sqlite", path, name: url };
  return { kind: "mongodb", url, name: withoutSecrets(url) };
}

/** A URL of MongoDB without its secrets. */
export function withoutSecrets(url: string): string {
  // Anything before an @ can be an unencoded password.
  const hosts = /(?:[^@/?:[\]]|:\d+(?=[,/?]|$)|\[[^@/?[\]]*\])+(?:\/[^@?]*)?/.source;
  const parts = new RegExp(
    `^(mongodb(?:\\+srv)?://)(?:[^/?]*@(${hosts})(?:\\?.*)?|(${hosts})(?:\\?[^@]*)?)$`,
  );
  const [, scheme = "mongodb://", known, anonymous = "…"] = parts.exec(url) ?? [];
  return scheme + (known ?? anonymous);
}

/**
 * Opens the store of a database.
 *
 * @throws {ConfigError} MongoDB's driver does not take the URL
 * @throws {Error} for operators, if the store cannot be used
 */
export async function openStore(database: Database, options: StoreOptions): Promise<Store> {
  if (database.kind === "mongodb") {
    const { createMongoStore } = await import("./mongodb/mongodb.ts");
    return createMongoStore(database.url, options);
  }
  const { createSqliteStore } = await import("./sqlite/sqlite.ts");
  return createSqliteStore(database.path, options);
}
