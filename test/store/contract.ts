import { getEventListeners } from "node:events";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { type Investor, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../../src/investor/investor.ts";
import {
  DuplicateIdError,
  maxListed,
  type Store,
  StoreUnavailableError,
} from "../../src/store/store.ts";
import { anInvestor, everyText, largest } from "../support/records.ts";

/**
 * Checks every promise of the interface Store, each on a fresh database.
 *
 * @param createDatabase returns what opens a store on it; what one has written, another sees
 */
export function describeStoreContract(
  name: string,
  createDatabase: () => () => Store | Promise<Store>,
): void {
  async function openStore(): Promise<Store & { reopen(): Store | Promise<Store> }> {
    const reopen = createDatabase();
    return { ...(await reopen()), reopen };
  }

  const some = (count: number, texts = {}) =>
    Array.from({ length: count }, () => anInvestor(texts));
  const insertAll = (store: Store, records: Investor[]) =>
    Promise.all(records.map((record) => store.insert(record)));
  const idsOf = (records: { id: string }[]) => records.map(({ id }) => id);

  describe(`${name} keeps the contract of stores`, () => {
    it("reads what was inserted, exactly as it was, at once and in every way of reading", async () => {
      const store = await openStore();
      const other = await store.reopen();
      const records = [
        anInvestor(everyText),
        anInvestor({ type: InvestorType.INSTITUTION, lastName: "" }),
        anInvestor({ firstName: "𝔘𝔫𝔦 \u{1F600} é \"quoted\" 'x' \\ ; $set" }),
        anInvestor({
          firstName: "x".repeat(maxTextLength),
          middleName: "\u{10FFFF}".repeat(maxTextLength),
        }),
        ...some(20),
      ];
      for (const record of records) {
        await store.insert(record);
        expect(await other.find(record.id)).toEqual(record);
        expect(await other.list({ limit: 100 })).toContainEqual(record);
      }
    });

    it("refuses an id only when its record can be read, by others too", async () => {
      const store = await openStore();
      const other = await store.reopen();
      for (let i = 0; i < 20; i += 1) {
        const record = anInvestor();
        // One is refused for the record of the other, which may not be acknowledged yet.
        const first = store.insert(record);
        const second = other.insert(anInvestor({ id: record.id }));
        await Promise.all(
          [first, second].map((rival) =>
            rival.catch(async (error) => {
              expect(error).toBeInstanceOf(DuplicateIdError);
              expect((await other.find(record.id))?.id).toBe(record.id);
            }),
          ),
        );
      }
    });

    it("leaves nothing on a signal that outlasts its calls", async () => {
      const store = await openStore();
      const { signal } = new AbortController();
      const record = anInvestor();
      await store.insert(record, signal);
      await expect(store.insert(record, signal)).rejects.toThrow(DuplicateIdError);
      await store.find(record.id, { signal });
      await store.find(v7(), { signal });
      await store.list({ limit: 1 }, signal);
      await store.ping(signal);
      expect(getEventListeners(signal, "abort")).toEqual([]);
    });

    it("stores one of many concurrent inserts of an id and refuses each other", async () => {
      const store = await openStore();
      const id = v7();
      const neighbours = some(50);
      const mixed = neighbours.flatMap((neighbour) => [neighbour, anInvestor({ id })]);
      const outcomes = await Promise.allSettled(mixed.map((record) => store.insert(record)));

      const failures = outcomes.filter((outcome) => outcome.status === "rejected");
      expect(failures).toHaveLength(neighbours.length - 1);
      for (const { reason } of failures) expect(reason).toBeInstanceOf(DuplicateIdError);
      const refused = mixed.filter((_, i) => outcomes[i]?.status === "rejected");
      expect(new Set(idsOf(refused))).toEqual(new Set([id]));
      expect(await store.list({ limit: 1_000 })).toHaveLength(neighbours.length + 1);
      const isWinner = (record: Investor, i: number) =>
        record.id === id && outcomes[i]?.status === "fulfilled";
      const winner = mixed.find(isWinner);
      expect(await store.find(id)).toEqual(winner);
      await expect(store.insert(anInvestor({ id }))).rejects.toThrow(DuplicateIdError);
      expect(await store.find(id)).toEqual(winner);
    });

    it("stores a crowd of the largest records, and lists them in one page", async () => {
      const store = await openStore();
      const records = some(maxListed, largest);
      await insertAll(store, records);
      const stored = await store.list({ limit: maxListed });
      expect(idsOf(stored)).toEqual(idsOf(records).sort());
      expect(stored.at(-1)).toMatchObject(largest);
    });

    it("answers each of a crowd of lookups with its own record, or none", async () => {
      const store = await openStore();
      const records = some(100);
      await insertAll(store, records);
      const wanted = records.flatMap(({ id }) => [id, v7(), id]);
      const found = await Promise.all(wanted.map((id) => store.find(id)));
      const ids = new Set(idsOf(records));
      expect(found.map((record) => record?.id)).toEqual(
        wanted.map((id) => (ids.has(id) ? id : undefined)),
      );
    });

    it("lists ascending by id, after a key, up to a limit", async () => {
      const store = await openStore();
      const ids = [
        "ffffffff-ffff-8fff-bfff-fffffffffffe",
        "00000000-0000-8000-8000-000000000001",
        "7fffffff-ffff-8fff-bfff-ffffffffffff",
        "80000000-0000-8000-8000-000000000000",
        "80000000-0000-8000-8000-0000000000ff",
      ];
      for (const id of ids) await store.insert(anInvestor({ id }));
      const sorted = [...ids].sort();
      expect(idsOf(await store.list({ limit: 10 }))).toEqual(sorted);
      expect(idsOf(await store.list({ limit: 2 }))).toEqual(sorted.slice(0, 2));
      expect(idsOf(await store.list({ after: sorted[1], limit: 2 }))).toEqual(sorted.slice(2, 4));
      // The key need not be there.
      const between = "7fffffff-ffff-8fff-bfff-fffffffffff0";
      expect(idsOf(await store.list({ after: between, limit: 1 }))).toEqual([sorted[1]]);
      expect(await store.list({ after: sorted[4], limit: 1 })).toEqual([]);
    });

    it("rejects a call whose signal has aborted, with its reason, and writes nothing", async () => {
      const store = await openStore();
      const record = anInvestor();
      const aborted = AbortSignal.abort(new Error("enough"));
      await expect(store.insert(record, aborted)).rejects.toBe(aborted.reason);
      await expect(store.list({ limit: 1 }, aborted)).rejects.toBe(aborted.reason);
      expect(await store.find(record.id)).toBeUndefined();
      expect(await store.list({ limit: 1 })).toEqual([]);
      await store.ping();
    });

    it("settles aborted inserts alone, as unknown or as surely not written", async () => {
      const store = await openStore();
      const patient = some(300);
      const hasty = some(300);
      const controller = new AbortController();
      const kept = patient.map((record) => store.insert(record));
      const left = Promise.allSettled(
        hasty.map((record) => store.insert(record, controller.signal)),
      );
      const reason = new Error("the caller left");
      controller.abort(reason);

      await Promise.all(kept);
      const outcomes = await left;
      const found = await Promise.all(hasty.map(({ id }) => store.find(id)));
      for (const [i, outcome] of outcomes.entries()) {
        const stored = found[i];
        if (outcome.status === "rejected" && outcome.reason === reason) {
          expect(stored).toBeUndefined();
        } else if (outcome.status === "rejected") {
          expect(outcome.reason).toHaveProperty("name", "OutcomeUnknownError");
        } else {
          expect(stored).toBeDefined();
        }
      }
    });

    it("finishes what it accepted when it is closed, and has it when it is opened again", async () => {
      const store = await openStore();
      const records = some(1_000);
      const inserts = records.map((record) => store.insert(record));
      await Promise.all([store.close(), store.close(), ...inserts]);
      const again = await store.reopen();
      expect(await again.list({ limit: 5_000 })).toEqual(
        records.toSorted((a, b) => (a.id < b.id ? -1 : 1)),
      );
    });

    it("finishes the call before it was closed, and rejects every one after", async () => {
      const store = await openStore();
      const record = anInvestor();
      await store.insert(record);
      const found = store.find(record.id);
      await store.close();
      expect(await found).toEqual(record);
      await expect(store.insert(anInvestor())).rejects.toThrow(StoreUnavailableError);
      await expect(store.find(v7())).rejects.toThrow(StoreUnavailableError);
      await expect(store.list({ limit: 1 })).rejects.toThrow(StoreUnavailableError);
      await expect(store.ping()).rejects.toThrow(StoreUnavailableError);
      await expect(store.close()).resolves.toBeUndefined();
    });
  });
}
