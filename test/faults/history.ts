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

/** A contradiction, with all that is known about its record. */
export interface Violation {
  rule: Rule;
  detail: string;
}

/** A create that is under way. */
export interface CreateCall {
  acknowledged(investor: Investor): void;
  failed(failure: FailedCall): void;
}

/** A get that is under way. */
export interface GetCall {
  found(investor: Investor): void;
  failed(failure: FailedCall): void;
}

/** A walk over all records that is under way, by pages or by the whole list. */
export interface WalkCall {
  saw(investor: Investor): void;
  /** All of it was seen. */
  ended(): void;
  /** A part of it failed, and is asked for again or given up. */
  failed(failure: FailedCall): void;
}

/**
 * A history that is checked while it grows. All of its events happen in one process, so that
 * their order is certain: a call that begins after an event has to agree with it.
 */
export interface History {
  /** A create is sent; `via` says how. One that is repeated is the same request. */
  create(request: CreateRequest, via: string): CreateCall;
  get(id: string, via: string): GetCall;
  walk(via: string): WalkCall;
  /** Notes a fault, for those who read the reports. */
  note(fault: string): void;
  readonly notes: readonly string[];
  /** Whether the database cannot be read, so that calls may fail as INTERNAL. */
  isUnreadable: boolean;
  /** The ids of the records that were acknowledged or seen, in this order. */
  readonly visible: readonly string[];
  readonly acknowledged: number;
  readonly violations: readonly Violation[];
  /** How often each kind of reply came. */
  readonly counts: Record<string, number>;
  /** @throws {Error} what is wrong, if anything is */
  expectSound(): void;
}

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

/** What may become of any call; an empty reason is a connection that broke. */
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

/** Makes an empty history. */
export function createHistory(): History {
  // By the first name, which no two requests share.
  const entries = new Map<string, Entry>();
  const byRequestId = new Map<string, Entry>();
  const owners = new Map<string, Entry>();
  const visible: string[] = [];
  const violations: Violation[] = [];
  const counts: Record<string, number> = {};
  const notes: string[] = [];
  const start = performance.now();
  let isUnreadable = false;
  let acknowledged = 0;

  const stamp = (text: string) => `${((performance.now() - start) / 1_000).toFixed(3)} ${text}`;

  function count(what: string): void {
    counts[what] = (counts[what] ?? 0) + 1;
  }

  function violate(rule: Rule, detail: string, entry?: Entry): void {
    const events = (entry?.events ?? []).map((event) => `\n    ${event}`).join("");
    violations.push({ rule, detail: stamp(`${detail}${events}`) });
  }

  function isExpected(reason: string): boolean {
    return temporary.has(reason) || (isUnreadable && reason === "INTERNAL");
  }

  function entryOf(request: CreateRequest): Entry {
    const name = String(request.firstName);
    const known = entries.get(name);
    if (known !== undefined) return known;
    const entry = {
      content: contentOf(request),
      hasRequestId: request.requestId !== undefined,
      isVisible: false,
      running: 0,
      mayBeThere: false,
      events: [],
    };
    entries.set(name, entry);
    if (request.requestId && !byRequestId.has(request.requestId)) {
      byRequestId.set(request.requestId, entry);
    }
    return entry;
  }

  /** A record came in a reply. */
  function see(investor: Investor, where: string): Entry | undefined {
    const { id, firstName } = investor;
    const entry = entries.get(firstName);
    if (entry === undefined) {
      violate("unrequested", `${where}: ${id} ${firstName}`);
      return undefined;
    }
    if (contentOf(investor) !== entry.content) violate("altered", `${where}: ${id}`, entry);
    if (entry.id !== undefined && entry.id !== id) {
      violate("doubled", `${where}: ${id} and ${entry.id}`, entry);
    }
    if (!entry.mayBeThere && entry.running === 0) {
      violate("refused, and there", `${where}: ${id}`, entry);
    }
    if (!entry.isVisible) {
      entry.isVisible = true;
      entry.id = id;
      entry.events.push(stamp(`${where}: there as ${id}`));
      owners.set(id, entry);
      visible.push(id);
    }
    return entry;
  }

  return {
    visible,
    violations,
    counts,
    notes,

    get isUnreadable() {
      return isUnreadable;
    },
    set isUnreadable(value) {
      isUnreadable = value;
    },

    get acknowledged() {
      return acknowledged;
    },

    create(request, via) {
      const entry = entryOf(request);
      entry.running += 1;
      entry.events.push(stamp(`${via}: create, request id ${request.requestId}`));
      return {
        acknowledged(investor) {
          entry.running -= 1;
          entry.mayBeThere = true;
          acknowledged += 1;
          count("create");
          entry.events.push(stamp(`${via}: acknowledged as ${investor.id}`));
          if (see(investor, `${via} create`) !== entry) {
            violate("altered", `${via}: another's record in the reply`, entry);
          }
        },
        failed({ reason, message, id }) {
          entry.running -= 1;
          count(`create ${reason}`);
          entry.events.push(stamp(`${via}: ${reason} ${message} ${id ?? ""}`));
          const isReused = byRequestId.get(request.requestId ?? "") !== entry;
          const isRight =
            isExpected(reason) ||
            reason === "OUTCOME_UNKNOWN" ||
            (reason === "INVALID_FIELDS" && request.country !== "gb") ||
            (reason === "REQUEST_ID_REUSED" && isReused);
          if (!isRight) violate("unexpected", `${via} create: ${reason} ${message}`, entry);
          if (nothingDone.has(reason) || message.includes("nothing was written")) {
            if (entry.isVisible && !entry.mayBeThere && entry.running === 0) {
              violate("refused, and there", `${via} create: ${entry.id}`, entry);
            }
            return;
          }
          entry.mayBeThere = true;
          if (reason !== "OUTCOME_UNKNOWN" || entry.hasRequestId) return;
          if (id === undefined) violate("unexpected", `${via}: no id to look up`, entry);
          else if ((entry.id ?? id) !== id) violate("doubled", `${via}: told to be ${id}`, entry);
          else entry.id = id;
        },
      };
    },

    get(id, via) {
      const known = owners.get(id);
      return {
        found(investor) {
          count("get");
          const isOther = investor.id !== id;
          if (isOther) violate("altered", `${via} get ${id}: ${investor.id} came`, known);
          see(investor, `${via} get`);
        },
        failed({ reason, message }) {
          count(`get ${reason}`);
          if (reason !== "INVESTOR_NOT_FOUND") {
            if (!isExpected(reason)) violate("unexpected", `${via} get: ${reason} ${message}`);
          } else if (known !== undefined) {
            violate("missing", `${via} get: ${id} was there before`, known);
          }
        },
      };
    },

    walk(via) {
      const before = visible.length;
      const seen = new Set<string>();
      let last = "";
      return {
        saw(investor) {
          if (investor.id <= last) violate("out of order", `${via}: ${investor.id} after ${last}`);
          last = investor.id;
          seen.add(investor.id);
          see(investor, via);
        },
        ended() {
          count(via);
          const missing = visible.slice(0, before).filter((id) => !seen.has(id));
          for (const id of missing.slice(0, maxReported)) {
            violate("missing", `${via}: ${id}, one of ${missing.length}`, owners.get(id));
          }
        },
        failed({ reason, message }) {
          count(`${via} ${reason}`);
          if (!isExpected(reason)) violate("unexpected", `${via}: ${reason} ${message}`);
        },
      };
    },

    note(fault) {
      notes.push(stamp(fault));
    },

    expectSound() {
      if (violations.length === 0) return;
      const rules = Object.entries(Object.groupBy(violations, ({ rule }) => rule));
      throw new Error(
        [
          ...rules.map(([rule, each]) => `${rule}: ${each.length}`),
          ...violations.slice(0, maxReported).map(({ rule, detail }) => `${rule}: ${detail}`),
          "faults:",
          ...notes,
        ].join("\n  "),
      );
    },
  };
}

/** The content of a record or of the request for it, as one text. */
export function contentOf(record: CreateRequest | Investor): string {
  const values = record as Record<string, unknown>;
  // All but the id.
  return JSON.stringify(InvestorSchema.fields.slice(1).map(({ localName }) => values[localName]));
}
