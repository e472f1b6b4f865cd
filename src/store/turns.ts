/**
 * Creates what large pieces of work wait for, so that other calls come between them: it resolves in a
 * turn of the event loop in which at most `count` begin, in the order in which they asked.
 */
export function createTurns(count = 1): () => Promise<void> {
  const waiting: (() => void)[] = [];

  function beginSome(): void {
    for (const begin of waiting.splice(0, count)) begin();
    if (waiting.length > 0) setImmediate(beginSome);
  }

  return () =>
    new Promise((resolve) => {
      if (waiting.push(resolve) === 1) setImmediate(beginSome);
    });
}

/**
 * Creates what lets at most `count` pieces of asynchronous work run at once, and has others wait in
 * order. It resolves with what the work has to call, once, when it ends.
 */
export function createQueue(count: number): () => Promise<() => void> {
  const waiting: (() => void)[] = [];
  let running = 0;

  function end(): void {
    running -= 1;
    waiting.shift()?.();
  }

  return async () => {
    running += 1;
    if (running > count) await new Promise<void>((resolve) => waiting.push(resolve));
    return end;
  };
}
