/** What the programs in `deploy/` use of the service. */
export { parseDatabaseUrl } from "./store/database-url.ts";
export { beginCount } from "./store/sqlite/commit-count.ts";
export { openSqliteFileToRead, refuseDamage } from "./store/sqlite/file.ts";
export { syncPath } from "./store/sqlite/paths.ts";
export { explainError, hasCode, resultCode } from "./store/sqlite/sqlite-errors.ts";
