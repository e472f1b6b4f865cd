import { createContextKey } from "@connectrpc/connect";

/** How many bytes of replies may wait to be sent. */
export interface ReplyBudget {
  /** Resolves when a reply of so many bytes may be made. */
  reserve(bytes: number): Promise<void>;
}

/** The budget for the reply of a call, in its context. */
export const replyBudgetKey = createContextKey<ReplyBudget>(
  { reserve: async () => {} },
  { description: "budget for the reply" },
);
