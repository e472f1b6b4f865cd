import { addAbortListener } from "node:events";

/**
 * Creates a function that large pieces of work await before they begin, so that other calls come in
 * between: at most `count` begin per turn of the event loop, in the order of arrival. A piece that
 * is over by its turn takes no room.
 */
export function createTurns(count = 1): (isOver?: () => boolean) => Promise<void> {
  const waiting = new Set<{ begin(): void; isOver?: (() => boolean) | undefined }>();

  function beginSome(): void {
    let room = count;
    for (const next of waiting) {
      if (room === 0) break;
      waiting.delete(next);
      if (!next.isOver?.()) room -= 1;
      next.begin();
    }
    if (waiting.size > 0) setImmediate(beginSome);
  }

  return (isOver) =>
    new Promise((begin) => {
      waiting.add({ begin, isOver });
      if (waiting.size === 1) setImmediate(beginSome);
    });
}

/**
 * Creates a queue that lets at most `count` pieces of asynchronous work run at once; the others
 * wait in order. What it returns settles with the work, or rejects with the reason of the signal if
 * that aborts before the work begins.
 */
export function createQueue(count: number) {
  const waiting = new Set<() => void>();
  let running = 0;

  function end(): void {
    const [next] = waiting;
    if (next === undefined) {
      running -= 1;
      return;
    }
    waiting.delete(next);
    next();
  }

  async function wait(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leave = () => {
      waiting.delete(resolve);
      reject(signal?.reason);
    };
    waiting.add(resolve);
    using _ = signal && addAbortListener(signal, leave);
    await promise;
  }

  return async <T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> => {
    if (running < count) running += 1;
    else await wait(signal);
    try {
      return await work();
    } finally {
      end();
    }
  };
}
