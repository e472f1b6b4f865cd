import { create } from "@bufbuild/protobuf";
import { InvestorSchema, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  type Range,
  type Store,
  StoreUnavailableError,
} from "../../src/store/store.ts";
import type { World } from "./simulated-world.ts";

/** What callers sent, were told and saw, and what of it contradicts the promises of a store. */
export class History {
  readonly violations: string[] = [];
  /** What was acknowledged or seen, by id; without content where the id was only "taken". */
  readonly known = new Map<string, string | undefined>();
  /** How many inserts of an id and a content were sent, and surely not written. */
  readonly #inserts = new Map<string, { sent: number; refused: number }>();
  readonly counts: Record<string, number> = {};
  readonly #world: World;
  readonly #replayMs: number;

  /** @param replayMs how long a store tries before it leaves the outcome of an insert open */
  constructor(world: World, replayMs: number) {
    this.#world = world;
    this.#replayMs = replayMs;
  }

  async insert(store: Store, id: string, firstName: string, signal?: AbortSignal): Promise<void> {
    const key = `${id} ${firstName}`;
    const insert = this.#inserts.get(key) ?? { sent: 0, refused: 0 };
    this.#inserts.set(key, insert);
    insert.sent += 1;
    const investor = create(InvestorSchema, { id, firstName, type: InvestorType.INDIVIDUAL });
    const start = this.#world.now;
    try {
      await store.insert(investor, signal);
      this.#see(id, firstName);
      this.#count("acknowledged");
    } catch (error) {
      this.#count(error === signal?.reason ? "taken back" : String((error as Error).name));
      if (error instanceof OutcomeUnknownError) {
        if (!signal?.aborted && this.#world.now < start + this.#replayMs) {
          this.violations.push(`the outcome of ${key} was left open too soon`);
        }
        return;
      }
      insert.refused += 1;
      if (error instanceof DuplicateIdError) {
        const others = this.#world.set.committed.filter((each) => idOf(each) === id);
        const isOther = others.some((each) => each.firstName !== firstName);
        const isSame = others.length > 0 && insert.sent > 1;
        if (!isOther && !isSame) this.violations.push(`${key} is no duplicate`);
        if (!this.known.has(id)) this.known.set(id, undefined);
      } else this.#expectRefusal(error, signal);
    }
  }

  async find(store: Store, id: string, signal?: AbortSignal): Promise<void> {
    const isKnown = this.known.has(id);
    try {
      const found = await store.find(id, signal && { signal });
      this.#count(found ? "found" : "missed");
      if (found) this.#see(found.id, found.firstName);
      else if (isKnown) this.violations.push(`find: ${id} is missing`);
    } catch (error) {
      this.#expectRefusal(error, signal);
    }
  }

  /** Reads a page; returns the id after which the next one begins. */
  async list(store: Store, range: Range, signal?: AbortSignal): Promise<string | undefined> {
    const { after = "", limit } = range;
    const known = [...this.known.keys()].filter((id) => id > after);
    try {
      const page = await store.list(range, signal);
      this.#count("page");
      const ids = page.map(({ id }) => id);
      const last = page.length === limit ? ids.at(-1) : undefined;
      const missing = known.filter((id) => !ids.includes(id) && (!last || id < last));
      if (missing.length > 0) this.violations.push(`list: ${missing} is missing`);
      if (ids.some((id, i) => id <= (ids[i - 1] ?? after))) this.violations.push("list: order");
      for (const { id, firstName } of page) this.#see(id, firstName);
      return last;
    } catch (error) {
      this.#expectRefusal(error, signal);
      return undefined;
    }
  }

  /** Compares all that was sent with what is stored in the end. */
  async finish(store: Store, limit: number): Promise<void> {
    const before = this.counts.refused ?? 0;
    const ids = new Set(Array.from(this.#inserts.keys(), (key) => key.slice(0, 36)));
    await Promise.all(Array.from(ids, (id) => this.find(store, id)));
    let after: string | undefined;
    do after = await this.list(store, { after, limit });
    while (after !== undefined);
    if ((this.counts.refused ?? 0) > before) this.violations.push("the end is unreadable");
  }

  #see(id: string, content: string): void {
    const before = this.known.get(id) ?? content;
    if (before !== content) this.violations.push(`${id} was ${before} and is ${content}`);
    this.known.set(id, content);
    const insert = this.#inserts.get(`${id} ${content}`);
    if (!insert || insert.sent === insert.refused) {
      // Of the same content under the same id, one may be told that it is a duplicate.
      this.violations.push(`${id} ${content} was not written and is there`);
    }
  }

  #expectRefusal(error: unknown, signal: AbortSignal | undefined): void {
    this.#count("refused");
    if (error instanceof StoreUnavailableError || (signal?.aborted && error === signal.reason))
      return;
    this.violations.push(`unexpected ${error instanceof Error ? error.stack : error}`);
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }
}

function idOf(document: { _id?: { toString(encoding: "hex"): string } }): string {
  const hex = document._id?.toString("hex") ?? "";
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
