/** What callers asked of a service and learned from it, and what of that contradicts a promise. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type CreateInvestorRequestSchema,
  type Investor,
  InvestorSchema,
} from "../../../gen/investor/v1/investor_pb.js";
import type { failureOf } from "../../support/errors.ts";

export type CreateRequest = MessageInitShape<typeof CreateInvestorRequestSchema>;

/** A call that failed, as its caller learns of it; without a reason, its connection broke. */
export type FailedCall = Pick<Awaited<ReturnType<typeof failureOf>>, "reason" | "message"> & {
  metadata?: Record<string, string> | undefined;
};

/** What a reply can contradict. */
type Rule =
  // What was acknowledged or seen is not in what was asked for later.
  | "missing"
  // One create, or one request id, made two records.
  | "doubled"
  | "altered"
  // Nobody asked for a record that is there.
  | "unrequested"
  // All its creates failed in a way that changes nothing.
  | "refused, and there"
  | "out of order"
  // The contract does not know such a failure here.
  | "unexpected";

/** All that is known about the creates of one content. */
interface Entry {
  content: string;
  hasRequestId: boolean;
  /** The id of its record, as it was acknowledged, seen or named by an error. */
  id?: string;
  isVisible: boolean;
  /** How many creates are in flight. */
  running: number;
  /** Whether a create was acknowledged, or may have been carried out. */
  mayBeThere: boolean;
}

/** Failures that change nothing. */
const nothingDone: (string | undefined)[] = [
  "OVERLOADED",
  "STORE_UNAVAILABLE",
  "REQUEST_ID_REUSED",
];

/** How any call can fail. */
const temporary: (string | undefined)[] = [
  undefined,
  "OVERLOADED",
  "STORE_UNAVAILABLE",
  "DEADLINE_EXCEEDED",
  "CANCELLED",
];

/** Whether a create that failed for this reason is worth another try, by its request id. */
export function isTemporary(reason: string | undefined): boolean {
  return temporary.includes(reason) || reason === "OUTCOME_UNKNOWN";
}

/**
 * A history that is checked while it grows. All of its events happen in one process, so that
 * their order is certain: a call that begins after an event has to agree with it.
 */
export class History {
  /** The ids of the records that were acknowledged or seen, in this order. */
  readonly visible: string[] = [];
  /** How often each kind of reply came. */
  readonly counts: Record<string, number> = {};

  readonly #violations: string[] = [];
  /** By the first name, which no two requests share. */
  readonly #entries = new Map<string, Entry>();
  readonly #byRequestId = new Map<string, Entry>();
  readonly #ids = new Set<string>();

  /** A create is sent. One that is repeated is the same request. */
  create(request: CreateRequest) {
    const entry = this.#entryOf(request);
    entry.running += 1;
    return {
      acknowledged: (investor: Investor) => {
        entry.running -= 1;
        entry.mayBeThere = true;
        this.#count("acknowledged");
        if (this.#see(investor, "create") !== entry) {
          this.#violate("altered", `create: ${investor.id} of another request came`);
        }
      },
      failed: (failure: FailedCall) => {
        entry.running -= 1;
        this.#count(`create ${failure.reason}`);
        this.#judgeFailedCreate(request, entry, failure);
      },
    };
  }

  #judgeFailedCreate(request: CreateRequest, entry: Entry, failure: FailedCall): void {
    const { reason, message, metadata } = failure;
    const isReused = this.#byRequestId.get(request.requestId ?? "") !== entry;
    if (!isTemporary(reason) && !(reason === "REQUEST_ID_REUSED" && isReused)) {
      this.#violate("unexpected", `create: ${reason} ${message}`);
    }
    if (nothingDone.includes(reason) || message.includes("nothing was written")) {
      if (entry.isVisible && !entry.mayBeThere && entry.running === 0) {
        this.#violate("refused, and there", `create: ${entry.id}`);
      }
      return;
    }
    entry.mayBeThere = true;
    if (reason !== "OUTCOME_UNKNOWN" || entry.hasRequestId) return;
    const id = metadata?.id;
    if (id === undefined) this.#violate("unexpected", "create: no id to look up");
    else if ((entry.id ?? id) !== id) this.#violate("doubled", `create: ${entry.id} and ${id}`);
    else entry.id = id;
  }

  /** A record is asked for. */
  get(id: string) {
    const isKnown = this.#ids.has(id);
    return {
      found: (investor: Investor) => {
        this.#count("get");
        if (investor.id !== id) this.#violate("altered", `get ${id}: ${investor.id} came`);
        this.#see(investor, "get");
      },
      failed: ({ reason, message }: FailedCall) => {
        this.#count(`get ${reason}`);
        if (reason !== "INVESTOR_NOT_FOUND") this.#expectTemporary(reason, `get: ${message}`);
        else if (isKnown) this.#violate("missing", `get: ${id}`);
      },
    };
  }

  /** A walk over all records begins, by pages or by the whole list. */
  walk(via: string) {
    const before = this.visible.length;
    const seen = new Set<string>();
    let last = "";
    return {
      saw: (investor: Investor) => {
        const { id } = investor;
        if (id <= last) this.#violate("out of order", `${via}: ${id} after ${last}`);
        last = id;
        seen.add(id);
        this.#see(investor, via);
      },
      /** All of it was seen. */
      ended: () => {
        this.#count(via);
        for (const id of this.visible.slice(0, before)) {
          if (!seen.has(id)) this.#violate("missing", `${via}: ${id}`);
        }
      },
      /** A part of it failed, and is asked for again or given up. */
      failed: ({ reason, message }: FailedCall) => {
        this.#count(`${via} ${reason}`);
        this.#expectTemporary(reason, `${via}: ${message}`);
      },
    };
  }

  /** One that knows the same records, to look at what may be, and need not become true. */
  fork(): History {
    const fork = new History();
    fork.visible.push(...this.visible);
    for (const [name, entry] of this.#entries) fork.#entries.set(name, { ...entry });
    return fork;
  }

  #count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  /** @throws {Error} what is wrong, if anything is */
  expectSound(): void {
    if (this.#violations.length > 0) throw new Error(this.describe());
  }

  /** The contradictions and the replies. */
  describe(): string {
    const found = `${this.#violations.length} contradictions, of which the first are`;
    return [found, ...this.#violations.slice(0, 10), JSON.stringify(this.counts)].join("\n  ");
  }

  #violate(rule: Rule, detail: string): void {
    this.#violations.push(`${rule}: ${detail}`);
  }

  #expectTemporary(reason: string | undefined, detail: string): void {
    if (!temporary.includes(reason)) this.#violate("unexpected", `${reason}, ${detail}`);
  }

  #entryOf(request: CreateRequest): Entry {
    const name = String(request.firstName);
    const known = this.#entries.get(name);
    if (known !== undefined) return known;
    const entry = {
      content: contentOf(request),
      hasRequestId: request.requestId !== undefined,
      isVisible: false,
      running: 0,
      mayBeThere: false,
    };
    this.#entries.set(name, entry);
    if (request.requestId && !this.#byRequestId.has(request.requestId)) {
      this.#byRequestId.set(request.requestId, entry);
    }
    return entry;
  }

  /** A record came in a reply. */
  #see(investor: Investor, where: string): Entry | undefined {
    const { id, firstName } = investor;
    const entry = this.#entries.get(firstName);
    if (entry === undefined) {
      this.#violate("unrequested", `${where}: ${id} ${firstName}`);
      return undefined;
    }
    if (contentOf(investor) !== entry.content) this.#violate("altered", `${where}: ${id}`);
    if ((entry.id ?? id) !== id) this.#violate("doubled", `${where}: ${id} and ${entry.id}`);
    if (!entry.mayBeThere && entry.running === 0) {
      this.#violate("refused, and there", `${where}: ${id}`);
    }
    if (!entry.isVisible) {
      entry.isVisible = true;
      entry.id = id;
      this.#ids.add(id);
      this.visible.push(id);
    }
    return entry;
  }
}

/** The content of a record or of the request for it, as one text. */
function contentOf(record: CreateRequest | Investor): string {
  const values = record as Record<string, unknown>;
  // All but the id.
  return JSON.stringify(InvestorSchema.fields.slice(1).map(({ localName }) => values[localName]));
}
