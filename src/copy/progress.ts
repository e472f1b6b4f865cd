import { SingleBar } from "cli-progress";
import { countAll, type Tally } from "./copier.ts";

/** Where a copy shows how far it is. */
export interface ProgressOptions {
  /** Prints a line for the user. */
  say(line: string): void;
  /** Standard error, if it is a terminal to draw the bar on. */
  terminal: NodeJS.WritableStream | undefined;
}

const barIntervalMs = 200;
const lineIntervalMs = 5_000;

/**
 * Shows at intervals how far a copy is: on a terminal by a bar, elsewhere by lines.
 *
 * @returns what ends it
 */
export function showProgress(tally: Tally, { say, terminal }: ProgressOptions): () => void {
  const start = performance.now();

  function state() {
    const count = countAll(tally);
    const { part } = tally;
    const seconds = (performance.now() - start) / 1_000;
    const left = part ? inTime(seconds / part - seconds) : "unknown";
    return { part: part ?? 0, count: inDigits(count), rate: inDigits(count / seconds), left };
  }

  const bar =
    terminal &&
    new SingleBar({
      stream: terminal,
      format: "{bar} {percentage} % | {count} records | {rate} a second | time left: {left}",
      // A cursor that is hidden would stay so if the process is killed.
      hideCursor: false,
      clearOnComplete: true,
    });
  bar?.start(1, 0, state());
  const show = () => {
    const now = state();
    if (bar) bar.update(now.part, now);
    else say(`${now.count} records, ${now.rate} a second, time left: ${now.left}`);
  };
  const timer = setInterval(show, bar ? barIntervalMs : lineIntervalMs);
  return () => {
    clearInterval(timer);
    bar?.stop();
  };
}

/** A number as people read it. */
export function inDigits(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** A time in seconds as people read it. */
export function inTime(seconds: number): string {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
