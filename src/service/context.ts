import { createContextKey } from "@connectrpc/connect";

/** The principal of the caller; empty without authentication. */
export const principalKey = createContextKey("", { description: "principal" });

/** The deadline of the call, by performance.now(). */
export const deadlineKey = createContextKey(Infinity, { description: "deadline" });

/** The records that a call was about, for the log. */
interface TouchedRecords {
  /** The id of the record that the call created. */
  readonly created?: string;
  /** The id of a record that the call may have created, or found under its request id. */
  readonly attempted?: string;
  /** The id of the record that the call read. */
  readonly read?: string;
  /** The first and last id, and the number, of the records that the call listed. */
  readonly first?: string | undefined;
  readonly last?: string | undefined;
  readonly count?: number;
}

/** The records that a call has touched; absent if it never got that far. */
export const touchedKey = createContextKey<TouchedRecords | undefined>(undefined, {
  description: "touched records",
});
