import type { Contestant } from "./contestant.ts";
import type { Work } from "./load/generator.ts";
import { type Measured, run } from "./load/run.ts";

/** One side of a comparison: a server, and what is asked of it. */
export interface Side {
  contestant: Contestant;
  protocol: "grpc" | "connect";
  path: string;
  /** Makes the work of one round. */
  work(): Work;
  /** Is told how many records a round has stored. */
  onCreated?(count: number): void;
}

/** What is compared: calls a second, or the median time of a call. */
export type Measure = "rate" | "p50";

/** A comparison, and the figure that it must reach. */
export interface Question {
  title: string;
  measure: Measure;
  callers: number;
  ours: Side;
  other: Side;
  /** The ratio of ours to the other: at least, if it is of rates, or else at most. */
  target?: number;
}

/** How a comparison went; of each side, the medians of its rounds. */
export interface Answer {
  title: string;
  measure: Measure;
  callers: number;
  other: string;
  ratio: number;
  target: number | undefined;
  isMet: boolean | undefined;
  ours: Omit<Measured, "created">;
  others: Omit<Measured, "created">;
}

/** How much to measure. */
export interface Effort {
  rounds: number;
  /** The time that a side is measured in a round. */
  seconds: number;
}

/**
 * Measures both sides in turn, round by round, and compares them by the median of the ratios
 * of the rounds: what disturbs the machine disturbs both.
 */
export async function compare(question: Question, { rounds, seconds }: Effort): Promise<Answer> {
  const { title, measure, callers, target } = question;
  const pairs: { ours: Measured; other: Measured }[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const order = round % 2 === 0 ? (["other", "ours"] as const) : (["ours", "other"] as const);
    const pair: Partial<Record<"ours" | "other", Measured>> = {};
    for (const side of order) pair[side] = await measureSide(question[side], callers, seconds);
    pairs.push(pair as (typeof pairs)[number]);
  }
  const ratio = median(pairs.map(({ ours, other }) => ours[measure] / other[measure]));
  return {
    title,
    measure,
    callers,
    other: question.other.contestant.name,
    ratio,
    target,
    isMet:
      target === undefined ? undefined : measure === "rate" ? ratio >= target : ratio <= target,
    ours: medians(pairs.map(({ ours }) => ours)),
    others: medians(pairs.map(({ other }) => other)),
  };
}

/** Compares for each of the questions, one after the other, and says which. */
export async function compareAll(
  questions: Question[],
  effort: Effort,
  say: (text: string) => void,
): Promise<Answer[]> {
  const answers: Answer[] = [];
  for (const question of questions) {
    const { title, callers, other } = question;
    say(`${title}, ${callers} callers, beside ${other.contestant.name}`);
    answers.push(await compare(question, effort));
  }
  return answers;
}

/** Measures one side once. */
export async function measureSide(side: Side, callers: number, seconds: number, rate?: number) {
  const { contestant, protocol, path, work, onCreated } = side;
  const port = protocol === "grpc" ? contestant.port : contestant.httpPort;
  const load = { protocol, port, path, callers, seconds, work: work() };
  const measured = await run(rate === undefined ? load : { ...load, rate });
  onCreated?.(measured.created);
  return measured;
}

function medians(all: Measured[]): Answer["ours"] {
  const of = (key: keyof Measured) => median(all.map((each) => each[key]));
  return { rate: of("rate"), p50: of("p50"), p99: of("p99"), p999: of("p999") };
}

function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const [low = Number.NaN, high = low] = sorted.slice(
    middle - ((sorted.length + 1) % 2),
    middle + 1,
  );
  return (low + high) / 2;
}
