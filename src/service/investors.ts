import { randomUUIDv7 } from "node:crypto";
import { create, equals } from "@bufbuild/protobuf";
import type { ContextValues, ServiceImpl } from "@connectrpc/connect";
import {
  type Investor,
  InvestorSchema,
  type InvestorService,
  ListInvestorsResponseSchema,
} from "../../gen/investor/v1/investor_pb.js";
import {
  interrupted,
  invalidFields,
  investorNotFound,
  outcomeUnknown,
  outcomeUnknownFor,
  requestIdReused,
  storeUnavailable,
} from "../failures.ts";
import { deriveId, isUuid } from "../investor/ids.ts";
import {
  checkStored,
  findViolations,
  maxRecordBytes,
  maxSerialisedSize,
  toInvestor,
  type Violation,
} from "../investor/investor.ts";
import {
  encodePageToken,
  findListViolations,
  maxPageBytes,
  type Range,
  toRange,
} from "../investor/paging.ts";
import { limits } from "../limits.ts";
import {
  DuplicateIdError,
  OutcomeUnknownError,
  type Store,
  StoreUnavailableError,
} from "../store/store.ts";
import { createQueue, createTurns } from "../turns.ts";
import { deadlineKey, principalKey, touchedKey } from "./context.ts";
import { settleInsert } from "./replay.ts";

/** Approximately the most bytes to read or write per turn of the event loop: some milliseconds of work. */
const maxPieceBytes = 128 * 1024;

/** How many records of a page to read first, and the least and most to read at once after that. */
const firstRead = 32;
const minRead = 16;
const maxRead = Math.floor((4 * 1024 * 1024) / maxRecordBytes);

/** The three operations on a store, as promised in proto/investor/v1/investor.proto. */
export function createInvestorService(store: Store): ServiceImpl<typeof InvestorService> {
  // Reading and sending a page takes milliseconds: other calls come in between.
  const takeTurn = createTurns();
  const inTurn = createQueue(limits.pagesAtOnce);

  /**
   * A page of at most `limit` records and bounded size, read in pieces of about {@link
   * maxPieceBytes}, by the average size so far.
   */
  async function listPage({ after, limit }: Range, signal: AbortSignal) {
    const investors: Investor[] = [];
    let last: Investor | undefined;
    let bytes = 0;
    for (;;) {
      const room = Math.min(maxPieceBytes, maxPageBytes - bytes);
      const fitting = Math.ceil((room / bytes) * investors.length);
      const wanted = bytes === 0 ? firstRead : Math.max(minRead, fitting);
      // One record beyond the page shows whether there is a next page.
      const count = Math.min(wanted, maxRead, limit + 1 - investors.length);
      await takeTurn(() => signal.aborted);
      const range = { after: last?.id ?? after, limit: count };
      const found = await store.list(range, signal).catch(rethrow);
      for (const investor of found) {
        checkStored(investor);
        bytes += maxSerialisedSize(investor);
        if (last && (investors.length === limit || bytes > maxPageBytes)) {
          return endPage(investors, bytes, encodePageToken(last.id));
        }
        investors.push(investor);
        last = investor;
      }
      if (found.length < count) return endPage(investors, bytes);
    }
  }

  async function endPage(investors: Investor[], bytes: number, nextPageToken = "") {
    // Small pages, such as those of whole lists, are read and written in the same turn.
    if (bytes > maxPieceBytes) await takeTurn();
    return create(ListInvestorsResponseSchema, { investors, nextPageToken });
  }

  return {
    async createInvestor(request, { signal, values }) {
      requireNone(findViolations(request));
      const investor = toInvestor(request);
      const { requestId } = request;
      // New ids ascend with time, which keeps inserts local.
      investor.id =
        requestId === "" ? randomUUIDv7() : deriveId(values.get(principalKey), requestId);
      // Leaves time for the reply, with the id, to reach the caller before the deadline.
      const now = performance.now();
      const replayUntil = now + (values.get(deadlineKey) - now) * 0.75;
      values.set(touchedKey, { attempted: investor.id });
      try {
        await store.insert(investor, signal);
        values.set(touchedKey, { created: investor.id });
        return investor;
      } catch (error) {
        const isOpen = error instanceof OutcomeUnknownError;
        if (!isOpen && !(error instanceof DuplicateIdError)) rethrow(error);
        const stored = await settleInsert(store, investor, error, replayUntil, signal);
        if (stored instanceof Error) {
          if (signal.aborted)
            throw interrupted(signal.reason, "the record may or may not be stored");
          if (requestId === "") throw outcomeUnknownFor(investor.id, stored);
          throw outcomeUnknown(stored);
        }
        checkStored(stored);
        if (!equals(InvestorSchema, stored, investor)) throw requestIdReused();
        if (isOpen) values.set(touchedKey, { created: investor.id });
        return stored;
      }
    },

    async getInvestor(request, call) {
      if (request.id === "") requireNone([{ in: "body", key: "id", rule: "is required" }]);
      const id = isUuid(request.id) ? request.id.toLowerCase() : undefined;
      const investor = id && (await store.find(id, call).catch(rethrow));
      if (!investor) throw investorNotFound(id);
      checkStored(investor);
      call.values.set(touchedKey, { read: id });
      return investor;
    },

    async listInvestors(request, { signal, values }) {
      requireNone(findListViolations(request));
      const page = await inTurn(() => listPage(toRange(request), signal), signal);
      noteListed(values, page.investors);
      return page;
    },
  };
}

function requireNone(violations: Violation[]): void {
  if (violations.length > 0) throw invalidFields(violations);
}

/** Adds the records of a page to those of the call's previous pages. */
function noteListed(values: ContextValues, investors: Investor[]): void {
  const before = values.get(touchedKey);
  values.set(touchedKey, {
    first: before?.first ?? investors[0]?.id,
    last: investors.at(-1)?.id ?? before?.last,
    count: (before?.count ?? 0) + investors.length,
  });
}

/** Converts errors of the store for the caller; the reason of an abort is such an error already. */
function rethrow(error: unknown): never {
  throw error instanceof StoreUnavailableError ? storeUnavailable(error) : error;
}
