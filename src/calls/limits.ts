import { overloaded } from "../errors.ts";

/** How much there may be at once, besides the calls in flight, which are a setting; requests in bytes. */
export const limits = {
  /** Lists of pages and whole ones together. */
  lists: 64,
  listsOfCaller: 56,
  wholeLists: 8,
  wholeListsOfCaller: 6,
  /** Pages being read. More would have their records live long enough to reach V8's old generation. */
  pagesAtOnce: 8,
  checks: 512,
  reflections: 512,
  watches: 1_024,
  /** Checks, reflection streams or watches of one connection. */
  publicCallsOfConnection: 64,
  webPages: 64,
  webPagesOfConnection: 8,
  metrics: 2,
  /** The largest valid one takes some 9 KiB. */
  requestBytes: 64 * 1024,
  /** Of a call that anybody may make: a name fits. */
  publicRequestBytes: 4 * 1024,
} as const;

interface Holder {
  readonly name: string;
  count: number;
}

/** All slots are held, or one holder has its share. */
export class LimitError extends Error {
  readonly #holders: ReadonlyMap<string, Holder>;

  constructor(holders: ReadonlyMap<string, Holder>) {
    super("the limit is reached");
    this.#holders = holders;
  }

  /** Who holds most of them now, by name; undefined if that is not known. Finding it takes a while. */
  get mostHeldBy(): string | undefined {
    const [most] = [...this.#holders.values()].toSorted((a, b) => b.count - a.count);
    return most?.name;
  }
}

/**
 * Creates `count` slots, of which each holder has at most `share`.
 *
 * @param what what they are for, in the plural; a refusal names it, and what `holds` them
 */
export function createSlots(what: string, count: number, share: number, holds = "caller") {
  const holders = new Map<string, Holder>();
  let held = 0;

  return {
    /**
     * Acquires one. The caller releases it, once, by calling what this returns.
     *
     * @param id who holds it; empty if it is not known, which may hold all of them
     * @param name its name in the log
     * @throws {ConnectError} OVERLOADED, if none is free or the holder has its share
     */
    acquire(id: string, name = id): () => void {
      const holder = holders.get(id) ?? { name, count: 0 };
      if (held >= count) throw overloaded(what, new LimitError(holders));
      if (holder.count >= share) {
        throw overloaded(`${what} of one ${holds}`, new LimitError(holders));
      }
      held += 1;
      holder.count += 1;
      if (id !== "") holders.set(id, holder);
      return () => {
        held -= 1;
        holder.count -= 1;
        if (holder.count === 0) holders.delete(id);
      };
    },
    heldBy: (id: string) => holders.get(id)?.count ?? 0,
    get held(): number {
      return held;
    },
  };
}
