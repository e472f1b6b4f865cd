import { overloaded } from "../errors.ts";

/** Creates `count` slots, of which each holder has at most `share`. */
export function createSlots(count: number, share: number) {
  const heldBy = new Map<string, number>();
  let held = 0;

  function release(holder: string): void {
    held -= 1;
    const left = (heldBy.get(holder) ?? 1) - 1;
    if (left > 0) heldBy.set(holder, left);
    else heldBy.delete(holder);
  }

  return {
    /**
     * Acquires one. The caller releases it, once, by calling what this returns.
     *
     * @param holder who holds it; empty if it is not known, which may hold all of them
     * @throws {ConnectError} OVERLOADED, if none is free or the holder has its share
     */
    acquire(holder: string): () => void {
      const own = heldBy.get(holder) ?? 0;
      if (held >= count || own >= share) throw overloaded();
      held += 1;
      if (holder !== "") heldBy.set(holder, own + 1);
      return () => release(holder);
    },
    /** How many one holder has. */
    heldBy: (holder: string) => heldBy.get(holder) ?? 0,
    /** How many are held. */
    get held(): number {
      return held;
    },
  };
}
