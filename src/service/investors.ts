import { randomUUIDv7 } from "node:crypto";
import { create, equals } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import {
  type Investor,
  InvestorSchema,
  type InvestorService,
  ListInvestorsResponseSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { expectRecord, maxSerialisedSize } from "../investor.ts";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  type Range,
  type Store,
  StoreUnavailableError,
} from "../store/store.ts";
import { createdKey, principalKey, reserveKey } from "./context.ts";
import {
  interrupted,
  investorNotFound,
  outcomeUnknown,
  outcomeUnknownFor,
  requestIdReused,
  storeUnavailable,
} from "./errors.ts";
import { deriveId } from "./ids.ts";
import { encodePageToken } from "./page-token.ts";
import { checkCreate, checkGet, checkList } from "./validation.ts";

/** The most that the records of a page weigh: 1 MiB less the room for the token of the next. */
const maxPageBytes = 1024 * 1024 - 64;

/** The most that one record weighs, roughly: eight texts of 256 code points of four bytes. */
const maxRecordBytes = 8_500;

/** The most bytes to read at once. */
const maxReadBytes = 4 * 1024 * 1024;

/** The fewest records to read at once, more than fit in a page at their largest, and the most. */
const minRead = 128;
const maxRead = Math.floor(maxReadBytes / maxRecordBytes);

/** What became of a create that nobody waits for any more. */
const mayBeStored = "the record may or may not be stored";

/** The three operations over a store, as proto/investor/v1/investor.proto promises them. */
export function createInvestorService(store: Store): ServiceImpl<typeof InvestorService> {
  return {
    async createInvestor(request, { signal, values }) {
      const investor = checkCreate(request);
      const { requestId } = request;
      // A new id ascends with time, which keeps inserts local.
      investor.id =
        requestId === undefined ? randomUUIDv7() : deriveId(values.get(principalKey), requestId);
      try {
        await store.insert(investor, signal);
        values.set(createdKey, investor.id);
        return investor;
      } catch (error) {
        if (requestId !== undefined && error instanceof DuplicateIdError) {
          return await replay(store, investor, signal);
        }
        if (!(error instanceof OutcomeUnknownError)) return rethrow(error);
        if (signal.aborted) throw interrupted(signal.reason, mayBeStored);
        throw requestId === undefined
          ? outcomeUnknownFor(investor.id, error)
          : outcomeUnknown(error);
      }
    },

    async getInvestor(request, call) {
      const id = checkGet(request);
      const investor = id && (await store.find(id, call).catch(rethrow));
      if (!investor) throw investorNotFound(id);
      expectRecord(investor);
      return investor;
    },

    async listInvestors(request, { signal, values }) {
      const range = checkList(request);
      const bytes = range.limit * maxRecordBytes;
      await values.get(reserveKey)(Math.min(bytes, maxPageBytes), Math.min(bytes, maxReadBytes));
      return readPage((part) => store.list(part, signal).catch(rethrow), range);
    },
  };
}

/** The record that an earlier create stored under the same id, if its content is the same. */
async function replay(store: Store, investor: Investor, signal: AbortSignal): Promise<Investor> {
  const stored = await store.find(investor.id, { signal }).catch((error) => {
    if (signal.aborted) throw interrupted(signal.reason, mayBeStored);
    throw error instanceof StoreUnavailableError ? outcomeUnknown(error) : error;
  });
  // The record that took the id was rolled back.
  if (stored === undefined) throw outcomeUnknown(new Error("the id is taken by no record"));
  expectRecord(stored);
  if (!equals(InvestorSchema, stored, investor)) throw requestIdReused();
  return stored;
}

/**
 * Reads a page of at most `limit` records and a bounded size: first {@link minRead}, then as many as
 * would fill it at the average size so far. Of the largest records it holds 126.
 */
async function readPage(list: (range: Range) => Promise<Investor[]>, { after, limit }: Range) {
  const investors: Investor[] = [];
  let last: Investor | undefined;
  let bytes = 0;
  let wanted = minRead;
  for (;;) {
    // One record more than the page may have shows whether there is a next one.
    const count = Math.min(wanted, limit + 1 - investors.length);
    const found = await list({ after: last?.id ?? after, limit: count });
    for (const investor of found) {
      expectRecord(investor);
      bytes += maxSerialisedSize(investor);
      if (last && (investors.length === limit || bytes > maxPageBytes)) {
        const nextPageToken = encodePageToken(last.id);
        return create(ListInvestorsResponseSchema, { investors, nextPageToken });
      }
      investors.push(investor);
      last = investor;
    }
    if (found.length < count) return create(ListInvestorsResponseSchema, { investors });
    const fitting = Math.ceil(((maxPageBytes - bytes) / bytes) * investors.length);
    wanted = Math.min(Math.max(minRead, fitting), maxRead);
  }
}

/** Rethrows an error of the store as one of the contract, as the reason of an abort is already. */
function rethrow(error: unknown): never {
  throw error instanceof StoreUnavailableError ? storeUnavailable(error) : error;
}
