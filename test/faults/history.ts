/** What callers asked of a service and were told by it, and what of that contradicts a promise. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type CreateInvestorRequestSchema,
  type Investor,
  InvestorSchema,
} from "../../gen/investor/v1/investor_pb.js";

export type CreateRequest = MessageInitShape<typeof CreateInvestorRequestSchema>;

/** A call that failed, as its caller learns of it. */
export interface FailedCall {
  /** Why, in the words of the service; empty if there was no reply. */
  reason: string;
  message: string;
  /** The id that the service named. */
  id?: string | undefined;
}

/** What a reply can contradict. */
export type Rule =
  /** A record that was acknowledged or seen is missing from what was asked for later. */
  | "missing"
  /** One create, or one request id, made two records. */
  | "doubled"
  /** A record differs from what was sent. */
  | "altered"
  /** A record is there that nobody asked for. */
  | "unrequested"
  /** A record is there whose creates were all told to have done nothing. */
  | "refused, and there"
  /** A walk does not ascend by id. */
  | "out of order"
  /** A failure that the contract does not know here. */
  | "unexpected";

/** All that is known about the creates of one content. */
interface Entry {
  content: string;
  hasRequestId: boolean;
  /** The id of its record, as it was acknowledged, seen or told. */
  id?: string;
  isVisible: boolean;
  /** How many creates are under way. */
  running: number;
  /** Whether a create was acknowledged, or may have been carried out. */
  mayBeThere: boolean;
  events: string[];
}

/** Replies that say that the call changed nothing. */
const nothingDone = new Set([
  "OVERLOADED",
  "STORE_UNAVAILABLE",
  "INVALID_FIELDS",
  "REQUEST_ID_REUSED",
]);

/** How any call can fail; an empty reason is a connection that broke. */
const temporary = new Set([
  "",
  "OVERLOADED",
  "STORE_UNAVAILABLE",
  "DEADLINE_EXCEEDED",
  "CANCELLED",
]);

/** Whether a create that failed for this reason is worth another try, by its request id. */
export function isTemporary(reason: string): boolean {
  return temporary.has(reason) || reason === "OUTCOME_UNKNOWN";
}

/** How many contradictions are told in full. */
const maxReported = 5;

/**
 * A history that is checked while it grows. All of its events happen in one process, so that
 * their order is certain: a call that begins after an event has to agree with it.
 */
export class History {
  /** The ids of the records that were acknowledged or seen, in this order. */
  readonly visible: string[] = [];
  /** The contradictions, with all that is known about their records. */
  readonly violations: { rule: Rule; detail: string }[] = [];
  /** How often each kind of reply came. */
  readonly counts: Record<string, number> = {};

  /** By the first name, which no two requests share. */
  readonly #entries = new Map<string, Entry>();
  readonly #byRequestId = new Map<string, Entry>();
  readonly #byId = new Map<string, Entry>();
  readonly #notes: string[] = [];
  readonly #start = performance.now();

  /** A create is sent. One that is repeated is the same request. */
  create(request: CreateRequest) {
    const entry = this.#entryOf(request);
    entry.running += 1;
    entry.events.push(this.#stamp(`create, request id ${request.requestId}`));
    return {
      acknowledged: (investor: Investor) => {
        entry.running -= 1;
        entry.mayBeThere = true;
        this.count("acknowledged");
        entry.events.push(this.#stamp(`acknowledged as ${investor.id}`));
        if (this.#see(investor, "create") !== entry) {
          this.#violate("altered", "another's record in the reply", entry);
        }
      },
      failed: (failure: FailedCall) => {
        entry.running -= 1;
        this.count(`create ${failure.reason}`);
        const { reason, message, id } = failure;
        entry.events.push(this.#stamp(`${reason} ${message} ${id ?? ""}`));
        this.#judgeFailedCreate(request, entry, failure);
      },
    };
  }

  #judgeFailedCreate(request: CreateRequest, entry: Entry, failure: FailedCall): void {
    const { reason, message, id } = failure;
    const isReused = this.#byRequestId.get(request.requestId ?? "") !== entry;
    const isRight =
      temporary.has(reason) ||
      reason === "OUTCOME_UNKNOWN" ||
      (reason === "INVALID_FIELDS" && request.country !== "gb") ||
      (reason === "REQUEST_ID_REUSED" && isReused);
    if (!isRight) this.#violate("unexpected", `create: ${reason} ${message}`, entry);
    if (nothingDone.has(reason) || message.includes("nothing was written")) {
      if (entry.isVisible && !entry.mayBeThere && entry.running === 0) {
        this.#violate("refused, and there", `create: ${entry.id}`, entry);
      }
      return;
    }
    entry.mayBeThere = true;
    if (reason !== "OUTCOME_UNKNOWN" || entry.hasRequestId) return;
    if (id === undefined) this.#violate("unexpected", "no id to look up", entry);
    else if ((entry.id ?? id) !== id) this.#violate("doubled", `told to be ${id}`, entry);
    else entry.id = id;
  }

  /** A record is asked for. */
  get(id: string) {
    const known = this.#byId.get(id);
    return {
      found: (investor: Investor) => {
        this.count("get");
        const isOther = investor.id !== id;
        if (isOther) this.#violate("altered", `get ${id}: ${investor.id} came`, known);
        this.#see(investor, "get");
      },
      failed: ({ reason, message }: FailedCall) => {
        this.count(`get ${reason}`);
        if (reason !== "INVESTOR_NOT_FOUND") this.#expect(reason, `get: ${message}`);
        else if (known) this.#violate("missing", `get: ${id} was there before`, known);
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
        this.count(via);
        const missing = this.visible.slice(0, before).filter((id) => !seen.has(id));
        for (const id of missing.slice(0, maxReported)) {
          this.#violate("missing", `${via}: ${id}, one of ${missing.length}`, this.#byId.get(id));
        }
      },
      /** A part of it failed, and is asked for again or given up. */
      failed: ({ reason, message }: FailedCall) => {
        this.count(`${via} ${reason}`);
        this.#expect(reason, `${via}: ${message}`);
      },
    };
  }

  /** Notes a fault, for those who read the reports. */
  note(fault: string): void {
    this.#notes.push(this.#stamp(fault));
  }

  count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  /** @throws {Error} what is wrong, if anything is */
  expectSound(): void {
    if (this.violations.length > 0) throw new Error(this.describe());
  }

  /** The contradictions, the faults and the replies. */
  describe(): string {
    const rules = Object.entries(Object.groupBy(this.violations, ({ rule }) => rule));
    return [
      ...rules.map(([rule, each]) => `${rule}: ${each.length}`),
      ...this.violations.slice(0, maxReported).map(({ rule, detail }) => `${rule}: ${detail}`),
      "faults:",
      ...this.#notes,
      JSON.stringify(this.counts),
    ].join("\n  ");
  }

  #stamp(text: string): string {
    return `${((performance.now() - this.#start) / 1_000).toFixed(3)} ${text}`;
  }

  #violate(rule: Rule, detail: string, entry?: Entry): void {
    const events = (entry?.events ?? []).map((event) => `\n    ${event}`).join("");
    this.violations.push({ rule, detail: this.#stamp(`${detail}${events}`) });
  }

  #expect(reason: string, detail: string): void {
    if (!temporary.has(reason)) this.#violate("unexpected", `${reason}, ${detail}`);
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
      events: [],
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
    if (contentOf(investor) !== entry.content) this.#violate("altered", `${where}: ${id}`, entry);
    if (entry.id !== undefined && entry.id !== id) {
      this.#violate("doubled", `${where}: ${id} and ${entry.id}`, entry);
    }
    if (!entry.mayBeThere && entry.running === 0) {
      this.#violate("refused, and there", `${where}: ${id}`, entry);
    }
    if (!entry.isVisible) {
      entry.isVisible = true;
      entry.id = id;
      entry.events.push(this.#stamp(`${where}: there as ${id}`));
      this.#byId.set(id, entry);
      this.visible.push(id);
    }
    return entry;
  }
}

/** The content of a record or of the request for it, as one text. */
export function contentOf(record: CreateRequest | Investor): string {
  const values = record as Record<string, unknown>;
  // All but the id.
  return JSON.stringify(InvestorSchema.fields.slice(1).map(({ localName }) => values[localName]));
}
