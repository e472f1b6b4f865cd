import type { ConnectError, Transport } from "@connectrpc/connect";
import { createClient, type InvestorClient, type InvestorClientOptions } from "./client.ts";
import { codeOf, type Detail, type Failure, parseRetryAfter } from "./error.ts";

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
          return { reply: (await transport.unary(method, signal, ms, headers, message)).message };
        } catch (error) {
          if (!isConnectError(error)) throw error;
          return { failure: toFailure(error) };
        }
      },
      close() {},
    },
    options,
  );
}

function toFailure(error: ConnectError): Failure {
  const { code, rawMessage: message, details, metadata } = error;
  if (isConnectionFailure(error)) {
    const name = canHeal(error.cause) ? "UNAVAILABLE" : "FAILED_PRECONDITION";
    return { code: codeOf(name), message, cause: error, isUnanswered: true };
  }
  // Only what the service sent has details in this form.
  const sent = details.filter((detail): detail is Detail => "type" in detail);
  const retryAfterMs = parseRetryAfter(metadata.get("retry-after"));
  return { code, message, details: sent, cause: error, retryAfterMs };
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

/**
 * What Node.js says of a wrong URL or scheme, of a port that speaks another HTTP, of TLS, and of
 * certificates (https://nodejs.org/api/tls.html).
 */
const lasting = new RegExp(
  "CERT|CRL|^(ERR_INVALID|ERR_TLS|ERR_SSL|ERR_HTTP2_UNSUPPORTED|ERR_HTTP2_ERROR: Protocol error|" +
    "HPE_INVALID_CONSTANT|EPROTO|INVALID|HOSTNAME|UNABLE_TO|PATH_LENGTH)",
);

/** Whether a connection that failed can succeed later, by the errors that caused it. */
function canHeal(cause: unknown): boolean {
  for (let error = cause; error instanceof Error; error = error.cause) {
    if ("code" in error && error.code) return !lasting.test(`${error.code}: ${error.message}`);
  }
  // The fetch of Node.js refuses schemes and redirects without a code; that of browsers says nothing.
  return !(cause instanceof Error && cause.cause instanceof Error);
}
