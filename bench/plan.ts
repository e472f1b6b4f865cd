/** Gives the URL of a database of MongoDB by its name. */
export type MongoUrl = (name: string) => string;

/** What to measure, and where. */
export interface Plan {
  rounds: number;
  /** The time that a server is measured in a round, in seconds. */
  seconds: number;
  /** How many records are copied. */
  copied: number;
  /** How many there are in files of SQLite that are made for it: few and many. */
  grown: readonly [few: number, many: number];
  /** How many records there are beside others who ask for much. */
  beside: number;
  /** How many records are listed in one reply. */
  listed: number;
  /** How often the service is started to tell how long that takes. */
  starts: number;
  /** A folder on the disk that is measured. */
  folder: string;
  /** Tells of progress. */
  say(text: string): void;
}
