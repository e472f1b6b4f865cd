import type { ConnectError, Transport } from "@connectrpc/connect";
import { createClient, type InvestorClient, type InvestorClientOptions } from "./client.ts";
import { codeOf, type Detail, type Failure, parseRetryAfter } from "./error.ts";

export type { CallOptions, InvestorClient, InvestorClientOptions, NewInvestor } from "./client.ts";
export { type CodeName, InvestorError, type Violation } from "./error.ts";

/** The maximum of a timer, in ms. */
const maxTimerMs = 2 ** 31 - 1;

/**
 * Creates a client over a Connect transport: `@connectrpc/connect-node`, or
 * `@connectrpc/connect-web` for browsers. Closing connections is up to the transport.
 */
export function createInvestorClient(
  transport: Transport,
  options: InvestorClientOptions = {},
): InvestorClient {
  return createClient(
    {
      async call(method, { message, headers, timeoutMs, signal }) {
        // Connect treats a timeout of 0 or less as none.
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
  // Only details that the service sent have this form.
  const sent = details.filter((detail): detail is Detail => "type" in detail);
  const retryAfterMs = parseRetryAfter(metadata.get("retry-after"));
  return { code, message, details: sent, cause: error, retryAfterMs };
}

/** Recognizes errors of whichever copy of Connect the transport uses. */
function isConnectError(error: unknown): error is ConnectError {
  return error instanceof Error && error.name === "ConnectError" && "rawMessage" in error;
}

/** Whether the connection failed, for which Connect has several codes: the service sent nothing. */
function isConnectionFailure({ metadata, rawMessage, cause }: ConnectError): boolean {
  if (!metadata.keys().next().done) return false;
  // Node.js's errors have a code of their own, and fetch fails with a TypeError.
  return (
    rawMessage.startsWith("http/2 stream closed") ||
    (cause instanceof Error && ("code" in cause || cause instanceof TypeError))
  );
}

/**
 * Node.js's errors about a wrong URL or scheme, a port that speaks another HTTP, TLS, and
 * certificates (https://nodejs.org/api/tls.html).
 */
const lasting = new RegExp(
  "CERT|CRL|^(ERR_INVALID|ERR_TLS|ERR_SSL|ERR_HTTP2_UNSUPPORTED|ERR_HTTP2_ERROR: Protocol error|" +
    "HPE_INVALID_CONSTANT|EPROTO|INVALID|HOSTNAME|UNABLE_TO|PATH_LENGTH)",
);

/** Whether a failed connection can succeed later, by the errors that caused it. */
function canHeal(cause: unknown): boolean {
  for (let error = cause; error instanceof Error; error = error.cause) {
    if ("code" in error && error.code) return !lasting.test(`${error.code}: ${error.message}`);
  }
  // Node.js's fetch rejects schemes and redirects without a code; browsers give no cause.
  return !(cause instanceof Error && cause.cause instanceof Error);
}
