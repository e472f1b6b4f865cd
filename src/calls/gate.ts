import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import type { ConnectError } from "@connectrpc/connect";
import type { Authenticate } from "../auth/authentication.ts";
import { createPeerLookup, type Scope } from "../auth/caller.ts";
import type { Exchange } from "../http/exchange.ts";
import { principalKey } from "../service/context.ts";
import { scopeMissing } from "../service/errors.ts";
import { Call, type CallHead, type CallOptions } from "./call.ts";
import { createSlots } from "./slots.ts";
import type { Telemetry } from "./telemetry.ts";

/** See {@link createGate}. */
export type Gate = ReturnType<typeof createGate>;

/** How many watches there may be, and how many on one connection. */
const maxWatches = 1_024;
const maxWatchesOfConnection = 8;

/** The most public unary calls, such as health checks, at once on one connection. */
const maxPublicCallsOfConnection = 64;

/** The most reflection streams, in all and on one connection, and their timeout in milliseconds. */
const maxReflections = 256;
const maxReflectionsOfConnection = 8;
const reflectionTimeoutMs = 60_000;

/** What a {@link createGate gate} needs. */
interface GateOptions extends CallOptions {
  /** How many calls may be in flight at once. */
  maxInFlight: number;
  /** Authenticates callers; anybody may call if absent. */
  authenticate?: Authenticate | undefined;
  /** Follows every call but public ones, including those refused. */
  telemetry: Telemetry;
}

/**
 * Creates the gate, which admits or refuses a call by its headers alone, before any of the body is
 * read. Every transport asks it.
 */
export function createGate(options: GateOptions) {
  const { maxInFlight, authenticate, telemetry } = options;
  // Whatever one caller does, some slots are left for the others.
  const slots = createSlots(maxInFlight, Math.ceil((maxInFlight * 7) / 8));
  telemetry.showInFlight(() => slots.held);
  // No overall limit except memory: a client that held every slot could make health checks fail.
  const publicCalls = createSlots(Number.POSITIVE_INFINITY, maxPublicCallsOfConnection);
  const admitting = createSlots(Number.POSITIVE_INFINITY);
  const countInFlight = () => admitting.held + slots.held;
  const watches = createSlots(maxWatches, maxWatchesOfConnection);
  const reflections = createSlots(maxReflections, maxReflectionsOfConnection);
  const peerOf = createPeerLookup();

  async function authorise(call: Call, authenticate: Authenticate): Promise<void> {
    const caller = await call.untilEnd(authenticate(call.peer, call.head.exchange.headers));
    call.caller = caller;
    call.values.set(principalKey, caller.principal);
    const isRead = call.method.idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
    const needed: Scope = isRead ? "investors:read" : "investors:write";
    if (!caller.scopes.has(needed)) throw scopeMissing(needed);
  }

  function acquireSlot(call: Call): Call {
    const { exchange } = call.head;
    call.throwIfAborted();
    const principal = call.values.get(principalKey);
    exchange.usage.authorise(principal);
    exchange.usage.expectRoom();
    call.onClose(slots.acquire(principal));
    call.wasAdmitted = true;
    return call;
  }

  function follow(head: CallHead): Call {
    const call = new Call(head, peerOf(head.exchange.socket), options);
    telemetry.follow(call);
    return call;
  }

  return {
    /**
     * Admits a call: its caller is known and may make it, and a slot is free. The call holds the
     * slot until its reply has closed; one that is refused never holds any.
     *
     * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE,
     *   SCOPE_MISSING or OVERLOADED; CANCELLED, if its client left meanwhile
     */
    admit(head: CallHead): Call | Promise<Call> {
      const call = follow(head);
      const refuse = (error: unknown): never => {
        head.exchange.usage.refuse();
        throw call.fail(error);
      };
      if (authenticate) {
        const release = admitting.acquire();
        const endAdmission = head.exchange.usage.beginAdmission();
        return authorise(call, authenticate)
          .then(() => acquireSlot(call))
          .catch(refuse)
          .finally(() => {
            release();
            endAdmission();
          });
      }
      try {
        return acquireSlot(call);
      } catch (error) {
        return refuse(error);
      }
    },
    /**
     * Accepts whoever shows valid credentials, where any are needed, and takes no slot.
     *
     * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE or
     *   OVERLOADED
     */
    async identify(exchange: Exchange): Promise<void> {
      const peer = peerOf(exchange.socket);
      try {
        await authenticate?.(peer, exchange.headers);
        exchange.usage.use("call");
      } catch (error) {
        telemetry.refuseCredentials(peer.address, error);
        throw error;
      }
    },
    /**
     * Admits a call that anybody may make, within the limits on the number of its kind: it holds
     * none of the slots of others, and is not counted.
     *
     * @throws {ConnectError} OVERLOADED
     */
    admitPublic(head: CallHead): Call {
      const { exchange, method, timeoutMs = Number.POSITIVE_INFINITY } = head;
      const call = new Call(head, peerOf(exchange.socket), options);
      const isWatch = method.methodKind === "server_streaming";
      const isReflection = method.methodKind === "bidi_streaming";
      const slotsOfKind = isWatch ? watches : isReflection ? reflections : publicCalls;
      try {
        exchange.usage.expectRoom();
        call.onClose(slotsOfKind.acquire(call.peer.address));
      } catch (error) {
        exchange.usage.refuse();
        throw call.fail(error);
      }
      if (isWatch) exchange.usage.use("watch");
      if (isReflection) call.limit(Math.min(timeoutMs, reflectionTimeoutMs));
      return call;
    },
    /** Counts a call that was refused before the gate was asked. */
    refuse(head: CallHead, reason: ConnectError): void {
      head.exchange.usage.refuse();
      follow(head).fail(reason);
    },
    /** How many calls are being admitted, or were and have not ended. */
    get inFlight(): number {
      return countInFlight();
    },
    /** Resolves when no call is in flight. */
    async whenEmpty(): Promise<void> {
      while (countInFlight() > 0) {
        await admitting.whenEmpty();
        await slots.whenEmpty();
      }
    },
  };
}
