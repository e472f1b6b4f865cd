import { fstatSync } from "node:fs";
import { type Level, type Logger, pino } from "pino";
import type { StandardError } from "./standard-error.ts";

/** How a log is written. */
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
