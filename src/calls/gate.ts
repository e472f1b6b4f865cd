import type { IncomingHttpHeaders } from "node:http";
import type { DescMethod } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import type { Authenticate } from "../auth/authentication.ts";
import type { Scope } from "../auth/caller.ts";
import { scopeMissing } from "../errors.ts";
import { createQueue } from "../event-loop.ts";
import type { Peer } from "../http/peer.ts";
import { principalKey } from "../service/context.ts";
import { Call, type CallOptions } from "./call.ts";
import type { CallHead } from "./call-head.ts";
import { createSlots, limits } from "./limits.ts";
import { createPublicCalls } from "./public-calls.ts";
import type { Telemetry } from "./telemetry.ts";

/** See {@link createGate}. */
export type Gate = ReturnType<typeof createGate>;

/** The longest that a reflection stream may take, in milliseconds. */
const reflectionTimeoutMs = 60_000;

interface GateOptions extends CallOptions {
  /** How many calls may be in flight at once. */
  maxInFlight: number;
  /** Authenticates callers; anybody may call if absent. */
  authenticate?: Authenticate | undefined;
  /** Follows every call but public ones, including those refused. */
  telemetry: Telemetry;
}

/**
 * Creates what admits or refuses a call by its headers alone, before any of the body is read. Every
 * protocol asks it.
 */
export function createGate(options: GateOptions) {
  const { maxInFlight, authenticate, telemetry } = options;
  // Whatever one caller does, some slots are left for the others.
  const slots = createSlots("calls in flight", maxInFlight, Math.ceil((maxInFlight * 7) / 8));
  const inFlight = "investor_records_rpc_server_calls_in_flight";
  telemetry.show(inFlight, "Calls in flight.", () => slots.held);
  const lists = createSlots("lists", limits.lists, limits.listsOfCaller);
  const beginPage = createQueue(limits.pagesAtOnce);
  const wholeLists = createSlots("whole lists", limits.wholeLists, limits.wholeListsOfCaller);
  // One limit each, so that none keeps another out.
  const checks = createPublicCalls("health checks", limits.checks, "oldest");
  const reflections = createPublicCalls("reflection streams", limits.reflections, "oldest");
  const watches = createPublicCalls("health watches", limits.watches, "youngest");
  let admitting = 0;

  async function authorise(call: Call, authenticate: Authenticate): Promise<void> {
    const caller = await call.unlessAborted(
      authenticate(call.head.connection.peer, call.head.headers),
    );
    call.caller = caller;
    call.values.set(principalKey, caller.principal);
    const isRead = call.head.method.idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
    const needed: Scope = isRead ? "investors:read" : "investors:write";
    if (!caller.scopes.has(needed)) throw scopeMissing(needed);
  }

  function acquireSlots(call: Call): void {
    const { method, http } = call.head;
    call.throwIfAborted();
    const principal = call.values.get(principalKey);
    const name = call.caller?.name;
    const releases: (() => void)[] = [];
    try {
      releases.push(slots.acquire(principal, name));
      if (isList(method)) releases.push(lists.acquire(principal, name));
      if (http?.isWholeList) releases.push(wholeLists.acquire(principal, name));
    } catch (error) {
      for (const release of releases) release();
      throw error;
    }
    for (const release of releases) call.onClose(release);
    call.useConnection();
  }

  function admitPublic(call: Call): void {
    const { method, timeoutMs = reflectionTimeoutMs } = call.head;
    if (method.methodKind === "server_streaming") {
      watches.add(call);
      call.useConnection(true);
    } else if (method.methodKind === "bidi_streaming") {
      reflections.add(call);
      call.setDeadline(Math.min(timeoutMs, reflectionTimeoutMs));
    } else {
      checks.add(call);
    }
  }

  return {
    /** Begins a call that is yet to be admitted, and follows it. */
    begin(head: CallHead): Call {
      const call = new Call(head, options);
      telemetry.follow(call);
      return call;
    },
    /**
     * Admits a call: its caller is known and may make it, and a slot is free, which it holds until its
     * reply has closed. Anybody may make a public call, within the limits of its kind.
     *
     * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE,
     *   SCOPE_MISSING or OVERLOADED; CANCELLED or DEADLINE_EXCEEDED, if nobody waits any more
     */
    admit(call: Call): void | Promise<void> {
      if (call.head.isPublic) return admitPublic(call);
      if (authenticate === undefined) return acquireSlots(call);
      admitting += 1;
      return authorise(call, authenticate)
        .then(() => acquireSlots(call))
        .finally(() => {
          admitting -= 1;
        });
    },
    /**
     * Has a list wait until few other pages are being read. It resolves when the page can be read, which
     * ends with {@link Call.startReplyTimeout} or a failure; undefined if the call is no list.
     *
     * @throws {ConnectError} CANCELLED or DEADLINE_EXCEEDED, if nobody waits any more
     */
    waitForPage(call: Call): Promise<void> | undefined {
      return isList(call.head.method)
        ? call.unlessAborted(beginPage().then((end) => call.onceRead(end)))
        : undefined;
    },
    /**
     * Authenticates a request that is no call, where credentials are needed. It takes no slot.
     *
     * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE or
     *   OVERLOADED
     */
    async authenticate(peer: Peer, headers: IncomingHttpHeaders): Promise<void> {
      try {
        await authenticate?.(peer, headers);
      } catch (error) {
        telemetry.logCredentialRefusal(peer.address, error);
        throw error;
      }
    },
    /** Cuts off the watches that have not ended by themselves. */
    cutWatches: watches.endAll,
    /** How many calls are being admitted, or were and have not ended. */
    get inFlight(): number {
      return admitting + slots.held;
    },
  };
}

function isList(method: DescMethod): boolean {
  return method === InvestorService.method.listInvestors;
}
