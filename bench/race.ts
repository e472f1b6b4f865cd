import type { Database } from "./database.ts";
import { type Measured, putLoad } from "./load/load.ts";
import type { Plan } from "./plan.ts";
import type { Server } from "./server.ts";
import { type Api, creates, gets, type Known, type Work } from "./work.ts";

/** A server that is compared, and what is known of its records. */
export interface Contestant {
  server: Server;
  /** None for a bare server. */
  database: Database | undefined;
  /** How many records it said that it stored. */
  created: number;
  /** Records to get. */
  known: Known[];
}

/** A server whose database has records, of which none is known yet. */
export function toContestant(server: Server, database?: Database, created = 0): Contestant {
  return { server, database, created, known: [] };
}

/** What is compared: calls a second, the median time of a call, the server's CPU time a call. */
type Measure = "rate" | "p50" | "cpu";

/** Bounds of the ratio of our figure to another's: from below for a rate, else from above. */
export interface Goal {
  measure: Measure;
  must: number;
  aim: number;
}

/** Callers share connections by gRPC; by HTTP/1.1 each has one of its own. */
export const usualCallers = { grpc: 128, connect: 64 };

/** The same work for the service and for others; creates are by gRPC. */
export interface Race {
  operation: "Create" | "Get";
  api: Api;
  /** As many as usual if absent. */
  callers?: number;
  others: [contestant: Contestant, goal?: Goal][];
}

/** How one did: the medians of its rounds. */
interface Standing extends Measured {
  name: string;
  /** Resident memory after it, in MiB. */
  memory: number;
  /** The medians of the ratios of ours to it in each round. */
  ratios: Record<Measure, number>;
  goal: Goal | undefined;
}

/** Where records are. */
export type Store = "SQLite" | "MongoDB";

/** How a race went; ours comes first. */
export interface Outcome extends Pick<Race, "operation" | "api"> {
  store: Store;
  callers: number;
  standings: Standing[];
}

/** What was called, and where the records were. */
export function toTitle({ operation, api, store }: Outcome): string {
  return `${operation}, ${store}${api === "connect" ? ", Connect" : ""}`;
}

/**
 * Measures all in turn, round by round, so that what disturbs the machine disturbs all of them,
 * and compares within each round.
 */
export async function run(
  store: Store,
  { operation, api, callers = usualCallers[api], others }: Race,
  ours: Contestant,
  { rounds, seconds }: Plan,
): Promise<Outcome> {
  const entries = [[ours] as const, ...others].map(([contestant, goal]) => {
    return { contestant, goal, results: [] as Measured[] };
  });
  for (let round = 0; round < rounds; round += 1) {
    const first = round % entries.length;
    for (const { contestant, results } of [...entries.slice(first), ...entries.slice(0, first)]) {
      const work = operation === "Create" ? creates() : gets(api, contestant.known);
      results.push(await measure(contestant, work, callers, seconds));
    }
  }
  const ourResults = entries[0]?.results ?? [];
  const standings = entries.map(({ contestant, goal, results }): Standing => {
    const median = (key: keyof Measured) => medianOf(results.map((each) => each[key]));
    const ratio = (key: Measure) =>
      medianOf(results.map((each, round) => (ourResults[round]?.[key] ?? Number.NaN) / each[key]));
    return {
      name: contestant.server.name,
      rate: median("rate"),
      p50: median("p50"),
      p99: median("p99"),
      cpu: median("cpu"),
      memory: contestant.server.memory().now,
      ratios: { rate: ratio("rate"), p50: ratio("p50"), cpu: ratio("cpu") },
      goal,
    };
  });
  return { operation, api, store, callers, standings };
}

/** Measures one once, and counts what it says that it stored. */
export async function measure(
  contestant: Contestant,
  work: Work,
  callers: number,
  seconds: number,
): Promise<Measured> {
  const { measured, calls } = await putLoad(contestant.server, work, callers, seconds);
  if (work.stores) contestant.created += calls;
  return measured;
}

/**
 * Looks into the databases, and takes a sample of each to get.
 *
 * @throws {Error} one holds other records than were stored
 */
export async function verify(contestants: Contestant[], sampled = 2_000): Promise<void> {
  for (const contestant of contestants) {
    const { server, database, created } = contestant;
    if (database === undefined) continue;
    const stored = await database.count();
    if (stored !== created)
      throw new Error(`${server.name} stored ${stored} of ${created} records`);
    contestant.known = await database.sample(sampled);
  }
}

/** The value in the middle. */
export function medianOf(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  const at = (i: number) => sorted[i] ?? Number.NaN;
  return (at(Math.floor(middle)) + at(Math.ceil(middle))) / 2;
}
