import { equals } from "@bufbuild/protobuf";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { DuplicateIdError, type Store } from "../store/store.ts";
import type { Tally, Target } from "./copier.ts";

/** How many conflicting ids are kept. */
const maxIds = 10;

/** Copies into a store; what is there is never changed. */
export function createStoreTarget(store: Store): Target {
  // Where records are there already, looking for them is faster than to insert them.
  let isFilled = false;

  async function write(investor: Investor, tally: Tally): Promise<void> {
    let stored = isFilled ? await store.find(investor.id) : undefined;
    if (stored === undefined) {
      try {
        await store.insert(investor);
        tally.copied += 1;
        return;
      } catch (error) {
        if (!(error instanceof DuplicateIdError)) throw error;
      }
      stored = await store.find(investor.id);
    }
    if (stored === undefined) {
      throw new Error(`${investor.id} is refused as a duplicate, and no record has this id`);
    }
    if (equals(InvestorSchema, stored, investor)) {
      tally.present += 1;
    } else {
      tally.conflicts += 1;
      if (tally.conflictingIds.length < maxIds) tally.conflictingIds.push(investor.id);
    }
  }

  return {
    async write(investors, tally) {
      const { copied } = tally;
      const writes = investors.map((investor) => write(investor, tally));
      await Promise.allSettled(writes);
      await Promise.all(writes);
      isFilled = tally.copied - copied < investors.length / 2;
    },
    finish: () => store.close(),
    close: () => store.close(),
  };
}
