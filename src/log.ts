import { fstatSync } from "node:fs";
import { type Level, type Logger, pino } from "pino";
import type { StandardError } from "./standard-error.ts";

interface LogOptions {
  level: Level;
  /** The device and inode that journald reads, as systemd passes them in JOURNAL_STREAM. */
  journal?: string | undefined;
  /** Formats a line of JSON; unchanged if absent. */
  format?: ((line: string) => string) | undefined;
}

/**
 * Creates the log: lines of JSON on standard error. If journald reads it, each line starts with its
 * priority, which journald strips
 * (https://www.freedesktop.org/software/systemd/man/latest/sd-daemon.html).
 */
export function createLog(stderr: StandardError, { level, journal, format }: LogOptions): Logger {
  const { dev, ino } = fstatSync(2);
  const toText = format ?? (journal === `${dev}:${ino}` ? addPriority : (line: string) => line);
  const serializers = { err: describeError };
  return pino({ level, serializers }, { write: (line) => stderr.write(toText(line)) });
}

/** Syslog priorities: critical, error, warning, informational; debug for other levels. */
const priorities: Record<string, number> = { 60: 2, 50: 3, 40: 4, 30: 6 };

function addPriority(line: string): string {
  const [, level = ""] = /^\{"level":(\d+)/.exec(line) ?? [];
  return `<${priorities[level] ?? 7}>${line}`;
}

/** Serializes an error. Other properties can contain data that a caller has sent, or a record. */
function describeError(error: unknown): unknown {
  // Anything can be thrown.
  if (!(error instanceof Error)) return String(error);
  const { type, message, stack } = pino.stdSerializers.err(error);
  return { type, message, stack };
}

/** How many lines of a kind to log per second. */
const maxLines = 10;

/** Logs a line, unless there were too many of its kind; returns whether it was logged. */
export type LogLine = (level: Level, fields: object, message: string) => boolean;

/**
 * Creates a logger for lines of one kind, which a caller, a disk or a database can trigger
 * endlessly: ten a second, then one line that counts the rest. Lines whose level is off do not count.
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
    if (!log.isLevelEnabled(level)) return false;
    if (lines === 0) setTimeout(logRest, 1_000).unref();
    lines += 1;
    if (lines > maxLines) return false;
    log[level](fields, message);
    return true;
  };
}
