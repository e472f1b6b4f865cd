import type { Store, StoreOptions } from "./store.ts";

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
 * Says what is wrong with a database URL, without repeating it; undefined if nothing is.
 *
 * @param accepted the forms that the message names as accepted
 */
export function databaseUrlFault(text: string, accepted: string): string | undefined {
  const path = sqlitePathOf(text);
  const [, fault] = pathFaults.find(([pattern]) => path && pattern.test(path)) ?? [];
  if (fault) return `must be sqlite:PATH or sqlite:///PATH with the path as it is: ${fault}`;
  const isKnown = /^(?!.*\p{Cc})(sqlite:.|mongodb(\+srv)?:\/\/[^/?]+)/su.test(text);
  return isKnown ? undefined : `must be ${accepted}`;
}

/** The path in an SQLite URL; undefined for other URLs. */
export function sqlitePathOf(databaseUrl: string): string | undefined {
  return /^sqlite:(?:\/\/+(?=\/))?(.*)/s.exec(databaseUrl)?.[1];
}

/** A database URL without its secrets. */
export function withoutSecrets(databaseUrl: string): string {
  if (!databaseUrl.startsWith("mongodb")) return databaseUrl;
  // Anything before an @ can be an unencoded password.
  const hosts = /(?:[^@/?:[\]]|:\d+(?=[,/?]|$)|\[[^@/?[\]]*\])+(?:\/[^@?]*)?/.source;
  const parts = new RegExp(
    `^(mongodb(?:\\+srv)?://)(?:[^/?]*@(${hosts})(?:\\?.*)?|(${hosts})(?:\\?[^@]*)?)$`,
  );
  const [, scheme = "mongodb://", known, anonymous = "…"] = parts.exec(databaseUrl) ?? [];
  return scheme + (known ?? anonymous);
}

/**
 * Opens the store that a database URL names.
 *
 * @throws {DatabaseUrlError} the URL is malformed
 * @throws {Error} for operators, if the store cannot be used
 */
export async function openStore(databaseUrl: string, options: StoreOptions): Promise<Store> {
  const path = sqlitePathOf(databaseUrl);
  if (path === undefined) {
    const { createMongoStore } = await import("./mongodb/mongodb.ts");
    return createMongoStore(databaseUrl, options);
  }
  const { createSqliteStore } = await import("./sqlite/sqlite.ts");
  return createSqliteStore(path, options);
}
