import { Code, ConnectError } from "@connectrpc/connect";
import type { Call } from "../calls/call.ts";
import { malformedRequest, messageTooLarge } from "../service/errors.ts";

/**
 * Turns an error that Connect itself raised in a call, and is about to serialise, into one of the
 * service, and notes it.
 *
 * @param isDecoded whether the request could be decoded
 * @param maxBytes how long its message may be
 */
export function translateFailure(
  error: unknown,
  call: Call,
  isDecoded: boolean,
  maxBytes: number,
): void {
  // The service's own errors are noted already, and those of signals are no failures yet.
  if (!(error instanceof Error) || call.failure !== undefined) return;
  const { aborted, reason } = call.signal;
  if (error.name === "AbortError" || (aborted && error === reason)) return;
  if (aborted) {
    turnInto(error, call.fail(reason));
  } else if (isDecoded) {
    turnInto(error, call.fail(new Error("the reply cannot be written", { cause: error })));
  } else if (!(error instanceof ConnectError)) {
    turnInto(error, call.fail(malformedRequest(error)));
  } else if (error.code === Code.ResourceExhausted) {
    turnInto(error, call.fail(messageTooLarge(maxBytes)));
  } else if (error.cause !== undefined || error.rawMessage.startsWith("parse binary")) {
    turnInto(error, call.fail(malformedRequest(error.cause)));
  } else if (error.code === Code.InvalidArgument) {
    turnInto(error, call.fail(malformedRequest(undefined, error.rawMessage)));
  } else {
    // The protocols have codes and words of their own for these mistakes of a client.
    call.fail(error.code === Code.Internal ? malformedRequest() : error);
  }
}

/**
 * Turns an error that is about to be written down into another one. Connect takes whatever has
 * the members of a ConnectError for one.
 */
function turnInto(error: Error, reply: ConnectError): void {
  const { name, code, rawMessage, message, details, metadata } = reply;
  Object.assign(error, { name, code, rawMessage, message, details, metadata, cause: undefined });
}
