import type { IncomingHttpHeaders } from "node:http";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import type { Authenticate } from "../auth/authentication.ts";
import type { Scope } from "../auth/caller.ts";
import { scopeMissing } from "../failures.ts";
import type { Connection } from "../http/connection.ts";
import { limits } from "../limits.ts";
import { principalKey } from "../service/context.ts";
import { Call, type CallOptions } from "./call.ts";
import type { CallHead } from "./call-head.ts";
import { createSlots } from "./slots.ts";
import type { Telemetry } from "./telemetry.ts";

export type Gate = ReturnType<typeof createGate>;

interface GateOptions extends CallOptions {
  maxInFlight: number;
  /** Authenticates callers; if absent, anybody may call. */
  authenticate?: Authenticate | undefined;
  telemetry: Telemetry;
}

/**
 * Creates the gate, which admits or rejects calls of every protocol by their headers, before their
 * bodies are read.
 */
export function createGate(options: GateOptions) {
  const { maxInFlight, authenticate, telemetry } = options;
  const share = Math.ceil(maxInFlight * limits.shareOfCaller);
  const slots = createSlots("calls in flight", maxInFlight, share);
  const inFlight = "investor_records_rpc_server_calls_in_flight";
  telemetry.show(inFlight, "Calls in flight.", () => slots.held);
  const lists = createSlots("lists", limits.lists, limits.listsOfCaller);
  const wholeLists = createSlots("whole lists", limits.wholeLists, limits.wholeListsOfCaller);
  const reflections = createSlots("reflection streams", limits.reflections);
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
    const releases: (() => void)[] = [];
    try {
      releases.push(slots.acquire(principal));
      if (method === InvestorService.method.listInvestors) releases.push(lists.acquire(principal));
      if (http?.isWholeList) releases.push(wholeLists.acquire(principal));
    } catch (error) {
      for (const release of releases) release();
      throw error;
    }
    for (const release of releases) call.onClose(release);
    call.onClose(call.head.connection.keepBusy(true));
  }

  return {
    /** Begins a call, not yet admitted, and observes it. */
    begin(head: CallHead): Call {
      const call = new Call(head, options);
      telemetry.observe(call);
      return call;
    },
    /**
     * Admits a call: authenticates and authorizes its caller, and takes a slot until its reply has
     * closed. Anybody may make a public call; only reflection has a limit.
     *
     * @throws {Failure} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE,
     * SCOPE_MISSING or OVERLOADED; CANCELLED or DEADLINE_EXCEEDED, if nobody waits any more
     */
    admit(call: Call): void | Promise<void> {
      const { isPublic, method, connection } = call.head;
      if (isPublic) {
        if (method.methodKind === "bidi_streaming") call.onClose(reflections.acquire(""));
        return;
      }
      if (authenticate === undefined) return acquireSlots(call);
      admitting += 1;
      const release = connection.keepBusy(false);
      return authorise(call, authenticate)
        .then(() => acquireSlots(call))
        .finally(() => {
          admitting -= 1;
          release();
        });
    },
    /**
     * Like {@link Authenticate}, for a request that is not a call, and undefined if anybody may call.
     * Takes no slot. Meanwhile the connection is not idle.
     */
    async authenticate(connection: Connection, headers: IncomingHttpHeaders) {
      const release = connection.keepBusy(false);
      try {
        return await authenticate?.(connection.peer, headers);
      } finally {
        release();
      }
    },
    /** How many calls are being admitted or in flight. */
    get inFlight(): number {
      return admitting + slots.held;
    },
  };
}
