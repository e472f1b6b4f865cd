import type { Effort } from "./race.ts";
import type { buildGoPeers } from "./server.ts";

/** Gives the URL of a database of MongoDB by its name. */
export type MongoUrl = (name: string) => string;

/** What to measure, and where. */
export interface Plan {
  effort: Effort;
  /** How many records are copied, and then called for: few and many. */
  copied: number[];
  /** How many records are listed in one reply. */
  listed: number;
  /** How often the service is started to tell how long that takes. */
  starts: number;
  /** A folder on the disk that is measured. */
  folder: string;
  go: ReturnType<typeof buildGoPeers>;
  /** Tells of progress. */
  say(text: string): void;
}
