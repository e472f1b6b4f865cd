/** Whether the text names a database that a store can be opened for. */
export function isDatabaseUrl(text: string): boolean {
  // Of what SQLite takes for a path, these name no file, or one with options of its own. What
  // follows two slashes alone would be a host.
  return /^(?!.*\p{Cc})(sqlite:(?!:|file:|\/\/(?!\/)).|mongodb(\+srv)?:\/\/[^/?]+)/su.test(text);
}

/** The path that a database URL names, or undefined if it names no SQLite file. */
export function sqlitePathOf(databaseUrl: string): string | undefined {
  return /^sqlite:(?:\/\/(?=\/))?(.*)/s.exec(databaseUrl)?.[1];
}

/** A database URL without its secrets. */
export function withoutSecrets(databaseUrl: string): string {
  if (!databaseUrl.startsWith("mongodb")) return databaseUrl;
  // What stands before an @ can be a password that is not encoded.
  const parts =
    /^(mongodb(?:\+srv)?:\/\/)(?:[^/?]*@([^@/?]+(?:\/[^@?]*)?)(?:\?.*)?|([^@?]+)(?:\?[^@]*)?)$/;
  const [, scheme = "mongodb://", known, anonymous = "…"] = parts.exec(databaseUrl) ?? [];
  return scheme + (known ?? anonymous);
}
