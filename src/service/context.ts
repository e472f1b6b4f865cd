import { createContextKey } from "@connectrpc/connect";

/** The principal of the caller; empty without authentication. */
export const principalKey = createContextKey("", { description: "principal" });

/** When the caller stops waiting, by performance.now(). */
export const deadlineKey = createContextKey(Infinity, { description: "deadline" });

/** The records that a call was about, as the log names them. */
interface TouchedRecords {
  /** The id of the record that it has created. */
  readonly created?: string;
  /** The id of the record that it may have created, or has found created before. */
  readonly attempted?: string;
  /** The id of the record that it got. */
  readonly read?: string;
  /** The first and last id and the number of the records that it has listed. */
  readonly first?: string | undefined;
  readonly last?: string | undefined;
  readonly count?: number;
}

/** What a call has done to which records; none, if it never came to that. */
export const touchedKey = createContextKey<TouchedRecords | undefined>(undefined, {
  description: "touched records",
});
