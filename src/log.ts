import { fstatSync } from "node:fs";
import { type Level, type Logger, pino } from "pino";
import type { StandardError } from "./standard-error.ts";

interface LogOptions {
  level: Level;
  /** Which device and inode journald reads, as systemd names them in JOURNAL_STREAM. */
  journal?: string | undefined;
  /** Turns a line of JSON into what is written; it stays as it is if absent. */
  format?: ((line: string) => string) | undefined;
}

/**
 * Creates the log: lines of JSON on standard error. Where journald reads that, each begins with its
 * priority, which journald takes off
 * (https://www.freedesktop.org/software/systemd/man/latest/sd-daemon.html).
 */
export function createLog(stderr: StandardError, { level, journal, format }: LogOptions): Logger {
  const { dev, ino } = fstatSync(2);
  const toText = format ?? (journal === `${dev}:${ino}` ? addPriority : (line: string) => line);
  const serializers = { err: describeError };
  return pino({ level, serializers }, { write: (line) => stderr.write(toText(line)) });
}

/** The priorities of syslog: critical, error, warning, informational, debug. */
const priorities: Record<string, number> = { 60: 2, 50: 3, 40: 4, 30: 6 };

function addPriority(line: string): string {
  const [, level = ""] = /^\{"level":(\d+)/.exec(line) ?? [];
  return `<${priorities[level] ?? 7}>${line}`;
}

/** What the log has of an error. Other properties can hold what a caller has sent, or a record. */
function describeError(error: unknown): unknown {
  // Anything can be thrown.
  if (!(error instanceof Error)) return String(error);
  const { type, message, stack } = pino.stdSerializers.err(error);
  return { type, message, stack };
}

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
