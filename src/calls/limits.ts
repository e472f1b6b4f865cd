import { overloaded } from "../errors.ts";

/** Limits on what happens at once, besides the calls in flight, which are a setting; sizes in bytes. */
export const limits = {
  /** Lists in flight, of pages or whole. */
  lists: 64,
  listsOfCaller: 56,
  wholeLists: 8,
  wholeListsOfCaller: 6,
  /** Pages being read. With more, records would live long enough to reach V8's old generation. */
  pagesAtOnce: 8,
  /** Reflection streams, of all strangers together: one can keep the others from reflection. */
  reflections: 64,
  metrics: 16,
  metricsOfCaller: 1,
  /** The largest valid request takes about 9 KiB. */
  requestBytes: 64 * 1024,
  /** Of a public call: room for a name. */
  publicRequestBytes: 4 * 1024,
} as const;

/**
 * Creates `count` slots, of which each holder gets at most `share`.
 *
 * @param what what the slots are for, in the plural; errors name it
 */
export function createSlots(what: string, count: number, share = count) {
  const heldBy = new Map<string, number>();
  let held = 0;

  function add(id: string, change: 1 | -1): void {
    held += change;
    const own = (heldBy.get(id) ?? 0) + change;
    if (own === 0) heldBy.delete(id);
    else if (id !== "") heldBy.set(id, own);
  }

  return {
    /**
     * Acquires a slot. The returned function releases it; call it once.
     *
     * @param id the holder; empty if unknown, which may hold all slots
     * @throws {ConnectError} OVERLOADED, if no slot is free or the holder has its share
     */
    acquire(id: string): () => void {
      if (held >= count) throw overloaded(what);
      if ((heldBy.get(id) ?? 0) >= share) throw overloaded(`${what} of one caller`);
      add(id, 1);
      return () => add(id, -1);
    },
    get held(): number {
      return held;
    },
  };
}
