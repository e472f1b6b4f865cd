/**
 * Runs one attempt at the database with a signal that aborts when it is stuck, or with the
 * caller's. The attempt itself, by the limits of the driver and of the server (`maxTimeMS`),
 * is over after `limitMs`; the signal gives them a quarter more. So what they tell is heard
 * first (that nothing was sent, that the server gave the work up), and the signal speaks only
 * where the server is silent.
 *
 * It always aborts with an Error: of anything else the driver makes a TypeError, after the
 * request went out.
 *
 * @throws {unknown} the reason of the caller's signal, once that has aborted
 */
export async function attempt<T>(
  limitMs: number,
  run: (signal: AbortSignal) => Promise<T>,
  caller?: AbortSignal,
): Promise<T> {
  const controller = new AbortController();
  const leave = () => controller.abort(new Error("the caller left"));
  const giveUp = () => controller.abort(new Error(`no reply within ${limitMs} ms`));
  caller?.throwIfAborted();
  const timer = setTimeout(giveUp, limitMs * 1.25);
  caller?.addEventListener("abort", leave);
  try {
    return await run(controller.signal);
  } catch (error) {
    caller?.throwIfAborted();
    throw error;
  } finally {
    clearTimeout(timer);
    caller?.removeEventListener("abort", leave);
  }
}
