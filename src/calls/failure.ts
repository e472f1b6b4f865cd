import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import type { Logger } from "pino";
import { internal } from "../service/errors.ts";
import { type Call, callKey } from "./call.ts";

/**
 * Turns whatever is thrown that is not an answer, which is to say no ConnectError, into
 * INTERNAL with an id to quote. The cause goes to the log under this id and nowhere else.
 * It belongs outermost, and notes on the call why it failed.
 */
export function createFailureInterceptor(log: Logger): Interceptor {
  return (next) => async (req) => {
    const call = req.contextValues.get(callKey);
    call?.joinTrace();
    const fail = (error: unknown): never => {
      const answer = toAnswer(error, req.signal, call, log);
      call?.fail(answer);
      throw answer;
    };
    try {
      const res = await next(req);
      return res.stream ? { ...res, message: guard(res.message, fail) } : res;
    } catch (error) {
      return fail(error);
    }
  };
}

function toAnswer(
  error: unknown,
  signal: AbortSignal,
  call: Call | undefined,
  log: Logger,
): ConnectError {
  if (error instanceof ConnectError) return error;
  // What breaks when nobody waits for the answer any more is no fault.
  if (signal.aborted) return ConnectError.from(signal.reason, Code.Canceled);
  log.error({ err: error, traceId: call?.id }, "internal error");
  return internal(call?.id ?? "", error);
}

async function* guard<T>(
  messages: AsyncIterable<T>,
  fail: (error: unknown) => never,
): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    fail(error);
  }
}
