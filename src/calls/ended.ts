import { Code, ConnectError } from "@connectrpc/connect";

/** The reason of the signal of a call that has ended; one for all, since a stack is costly. */
export const ended = new ConnectError("the call has ended", Code.Canceled);
