import { createContextKey } from "@connectrpc/connect";

/** The principal of the caller; empty without authentication. */
export const principalKey = createContextKey("", { description: "principal" });

/** The id of the record that the call has created. */
export const createdKey = createContextKey<string | undefined>(undefined, {
  description: "created",
});
