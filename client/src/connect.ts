import type { DescMessage } from "@bufbuild/protobuf";
import type { ConnectError, Transport } from "@connectrpc/connect";
import { createClient, type InvestorClient, type InvestorClientOptions } from "./client.ts";
import { codeOf, type Detail, InvestorError } from "./error.ts";

export type { CallOptions, InvestorClient, InvestorClientOptions, NewInvestor } from "./client.ts";
export { type CodeName, InvestorError, type Violation } from "./error.ts";

/** The longest time of a timer, in ms. */
const maxTimerMs = 2 ** 31 - 1;

/**
 * Makes a client over a transport of Connect: that of `@connectrpc/connect-node`, or of
 * `@connectrpc/connect-web` for browsers. To close its connections is up to the transport.
 */
export function createInvestorClient(
  transport: Transport,
  options: InvestorClientOptions = {},
): InvestorClient {
  return createClient(
    {
      async call(method, { message, headers, timeoutMs, signal }) {
        // A timeout that is not above 0 is none.
        const ms = timeoutMs > maxTimerMs ? 0 : Math.max(1, Math.ceil(timeoutMs));
        try {
          return (await transport.unary(method, signal, ms, headers, message)).message;
        } catch (error) {
          throw toError(error, method.input, signal);
        }
      },
      close() {},
    },
    options,
  );
}

/** The error of a failed attempt; anything that is no error of Connect, as it is. */
function toError(error: unknown, input: DescMessage, signal: AbortSignal | undefined): unknown {
  if (!isConnectError(error)) return error;
  const { rawMessage: message, details } = error;
  // Only what the service sent has details in this form.
  const sent = details.filter((detail): detail is Detail => "type" in detail);
  const isLost = !signal?.aborted && isConnectionFailure(error);
  const code = isLost ? codeOf("UNAVAILABLE") : error.code;
  return new InvestorError({ code, message, details: sent, cause: error }, input);
}

/** Recognises one of whichever copy of Connect the transport has. */
function isConnectError(error: unknown): error is ConnectError {
  return error instanceof Error && error.name === "ConnectError" && "rawMessage" in error;
}

/** Whether a connection failed, for which Connect has several codes: nothing came from the service. */
function isConnectionFailure({ metadata, rawMessage, cause }: ConnectError): boolean {
  if (!metadata.keys().next().done) return false;
  // The errors of Node.js have a code of theirs, and fetch fails with a TypeError.
  return (
    rawMessage.startsWith("http/2 stream closed") ||
    (cause instanceof Error && ("code" in cause || cause instanceof TypeError))
  );
}
