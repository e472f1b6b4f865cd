import { overloaded } from "../failures.ts";

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
     * @throws {Failure} OVERLOADED, if no slot is free or the holder has its share
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
