import { createContextKey } from "@connectrpc/connect";

/** The principal of the caller; empty without authentication. */
export const principalKey = createContextKey("", { description: "principal" });

/** The id of the record that the call has created. */
export const createdKey = createContextKey<string | undefined>(undefined, {
  description: "created",
});

/** Resolves when a reply of `replyBytes` may be made, for which `readBytes` may be read at once. */
export const reserveKey = createContextKey(
  async (_replyBytes: number, _readBytes: number): Promise<void> => {},
  { description: "reservation for the reply" },
);
