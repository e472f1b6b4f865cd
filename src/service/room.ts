import { createContextKey } from "@connectrpc/connect";

/** Where replies wait until they are sent. */
export interface Room {
  /** Resolves when a reply of so many bytes may be made. */
  reserve(bytes: number): Promise<void>;
}

/** The room for the reply of a call, in its context. */
export const roomKey = createContextKey<Room>(
  { reserve: async () => {} },
  { description: "room for the reply" },
);
