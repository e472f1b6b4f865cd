import type { Level, Logger } from "pino";

/** How many lines of a kind are logged in a second. */
const maxLines = 10;

/** Logs a line, unless there were too many of its kind; returns whether it has. */
export type LogLine = (level: Level, fields: object, message: string) => boolean;

/**
 * Creates what logs lines of one kind, which a caller, a disk or a database can repeat without end:
 * ten a second, and a line that counts the others.
 *
 * @param what what happens that often, as in "more were refused"
 */
export function createBoundedLines(log: Logger, what: string): LogLine {
  let lines = 0;

  function logRest(): void {
    const count = lines - maxLines;
    lines = 0;
    if (count > 0) log.warn({ count }, `more ${what} in the same second`);
  }

  return (level, fields, message) => {
    if (lines === 0) setTimeout(logRest, 1_000).unref();
    lines += 1;
    if (lines > maxLines || !log.isLevelEnabled(level)) return false;
    log[level](fields, message);
    return true;
  };
}
