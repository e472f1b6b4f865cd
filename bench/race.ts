import type { Contestant } from "./contestant.ts";
import type { Work } from "./load/generator.ts";
import { type Measured, putLoad } from "./load/run.ts";

/** A server, and what is asked of it. */
export interface Side {
  name: string;
  contestant: Contestant;
  /** Makes the work of one round. */
  work(): Work;
  /** Is told how many records a round has stored. */
  onCreated?(count: number): void;
}

/** What sides are compared by: calls a second, the median time of a call, CPU time of a call. */
export type Measure = "rate" | "p50" | "cpu";

/** The ratio of ours to another: at least, if it is of rates, or else at most. */
export interface Goal {
  measure: Measure;
  must?: number;
  aim: number;
}

/** The same work for this service and for others. */
export interface Race {
  title: string;
  /** What the comparison means. */
  meaning: string;
  callers: number;
  /** Calls a second; as many as the callers can make if absent. */
  rate?: number;
  ours: Side;
  /** Those without a side are left out. */
  others: [other: Side | undefined, ...goals: Goal[]][];
}

/** How a side did: the medians of its rounds. */
export interface Standing extends Measured {
  name: string;
  /** The medians of the ratios of ours to it in each round. */
  ratios: Record<Measure, number>;
  goals: Goal[];
}

/** How a race went; ours comes first. */
export interface Outcome {
  title: string;
  meaning: string;
  callers: number;
  standings: Standing[];
}

/** How much to measure. */
export interface Effort {
  rounds: number;
  /** The time that a side is measured in a round, in seconds. */
  seconds: number;
}

/**
 * Measures all sides in turn, round by round, so that what disturbs the machine disturbs all
 * of them, and compares within each round.
 */
export async function run(race: Race, effort: Effort): Promise<Outcome> {
  const { title, meaning, callers, ours } = race;
  const entries = [{ side: ours, goals: [] as Goal[] }];
  for (const [side, ...goals] of race.others) if (side) entries.push({ side, goals });
  const rounds: Measured[][] = [];
  for (let round = 0; round < effort.rounds; round += 1) {
    const measured: Measured[] = [];
    for (let i = 0; i < entries.length; i += 1) {
      const at = (i + round) % entries.length;
      const { side } = entries[at] as (typeof entries)[number];
      measured[at] = await measure(side, callers, effort.seconds, race.rate);
    }
    rounds.push(measured);
  }
  const standings = entries.map(({ side: { name }, goals }, i): Standing => {
    const median = (value: (own: Measured, first: Measured) => number) =>
      medianOf(rounds.map((each) => value(each[i] as Measured, each[0] as Measured)));
    const ratio = (key: Measure) => median((own, first) => first[key] / own[key]);
    return {
      name,
      rate: median(({ rate }) => rate),
      p50: median(({ p50 }) => p50),
      p99: median(({ p99 }) => p99),
      cpu: median(({ cpu }) => cpu),
      ratios: { rate: ratio("rate"), p50: ratio("p50"), cpu: ratio("cpu") },
      goals,
    };
  });
  return { title, meaning, callers, standings };
}

/** Measures one side once. */
export async function measure(
  { contestant, work, onCreated }: Side,
  callers: number,
  seconds: number,
  rate?: number,
): Promise<Measured> {
  const { pid, port, httpPort } = contestant;
  const load = { pid, port, httpPort, callers, seconds, rate, work: work() };
  const { created, ...measured } = await putLoad(load);
  onCreated?.(created);
  return measured;
}

/** The value in the middle. */
export function medianOf(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return (
    ((sorted[Math.floor(middle)] ?? Number.NaN) + (sorted[Math.ceil(middle)] ?? Number.NaN)) / 2
  );
}
