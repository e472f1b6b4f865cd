import type { Contestant } from "./contestant.ts";
import type { Database } from "./database.ts";
import type { Side } from "./race.ts";
import { type Api, creates, gets, type Known } from "./work.ts";

/** A contestant that keeps records, and what is known of them. */
export interface Entrant {
  contestant: Contestant;
  database: Database;
  /** How many records it said that it stored. */
  created: number;
  /** Some that are there. */
  known: Known[];
}

/** Memory of a contestant in MiB. */
export interface Memory {
  name: string;
  store: string;
  idle: number;
  afterLoad: number;
}

/** Creates, counted. */
export function creating(entrant: Entrant, api: Api = "grpc"): Side {
  const { contestant } = entrant;
  return {
    name: contestant.name,
    contestant,
    work: () => creates(api),
    onCreated(count) {
      entrant.created += count;
    },
  };
}

/** Gets of what is known. */
export function getting(entrant: Pick<Entrant, "contestant" | "known">, api: Api = "grpc"): Side {
  const { contestant } = entrant;
  return { name: contestant.name, contestant, work: () => gets(api, entrant.known) };
}

/**
 * Looks into the databases, and takes a sample of each.
 *
 * @throws {Error} one holds other records than were stored
 */
export async function verify(entrants: Entrant[]): Promise<void> {
  for (const entrant of entrants) {
    const { contestant, database, created } = entrant;
    const stored = await database.count();
    if (stored !== created)
      throw new Error(`${contestant.name} stored ${stored} of ${created} records`);
    entrant.known = await database.sample(2_000);
  }
}
