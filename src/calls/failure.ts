import { randomUUID } from "node:crypto";
import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import type { Logger } from "pino";
import { internal } from "../service/errors.ts";

/**
 * Turns whatever is thrown that is not an answer, which is to say no ConnectError, into
 * INTERNAL with an id to quote. The cause goes to the log under this id and nowhere else.
 * It belongs outermost.
 */
export function createFailureInterceptor(log: Logger): Interceptor {
  const toAnswer = (error: unknown, method: string, signal: AbortSignal): ConnectError => {
    if (error instanceof ConnectError) return error;
    // What breaks when nobody waits for the answer any more is no fault.
    if (signal.aborted) return ConnectError.from(signal.reason, Code.Canceled);
    const id = randomUUID();
    log.error({ err: error, method, id }, "internal error");
    return internal(id, error);
  };

  return (next) => async (req) => {
    const method = `${req.service.typeName}/${req.method.name}`;
    try {
      const res = await next(req);
      if (!res.stream) return res;
      return {
        ...res,
        message: guard(res.message, (error) => toAnswer(error, method, req.signal)),
      };
    } catch (error) {
      throw toAnswer(error, method, req.signal);
    }
  };
}

async function* guard<T>(
  messages: AsyncIterable<T>,
  toAnswer: (error: unknown) => ConnectError,
): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw toAnswer(error);
  }
}
