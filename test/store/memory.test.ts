import { clone } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { DuplicateIdError, type Store, StoreClosedError } from "../../src/store/store.ts";
import { describeStoreContract } from "./contract.ts";

/** A store that resolves at once, which the contract has to take as it takes databases. */
function openStore(records: Map<string, Investor>): Store {
  let isClosed = false;

  async function use<T>(work: () => T, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    if (isClosed) throw new StoreClosedError();
    return work();
  }

  return {
    insert: (investor, signal) =>
      use(() => {
        if (records.has(investor.id)) throw new DuplicateIdError();
        records.set(investor.id, clone(InvestorSchema, investor));
      }, signal),
    find: (id) => use(() => records.get(id)),
    list: ({ after = "", limit }, signal) =>
      use(() => {
        const ids = Array.from(records.keys()).filter((id) => id > after);
        const page = ids.toSorted().slice(0, limit);
        return page.flatMap((id) => records.get(id) ?? []);
      }, signal),
    ping: () => use(() => {}),
    async close() {
      isClosed = true;
    },
  };
}

describeStoreContract("A store that resolves at once", () => {
  const records = new Map<string, Investor>();
  return () => openStore(records);
});
