import type { DescMethod } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import type { ConnectError } from "@connectrpc/connect";
import type { Exchange } from "../http/exchange.ts";
import { reasonOf, scopeMissing } from "../service/errors.ts";
import { principalKey } from "../service/ids.ts";
import type { Authenticate } from "./authentication.ts";
import { Call, type CallHead, type CallOptions } from "./call.ts";
import { callerKey, type Scope } from "./caller.ts";
import { createConnectionLookup } from "./connection.ts";
import { createSlots } from "./slots.ts";
import type { Telemetry } from "./telemetry.ts";

/** See {@link createGate}. */
export type Gate = ReturnType<typeof createGate>;

/** What a {@link createGate gate} needs. */
export interface GateOptions extends CallOptions {
  /** How many calls may be in flight at once. */
  maxInFlight: number;
  /** Tells who calls; if absent, anybody may. */
  authenticate?: Authenticate | undefined;
  /** Is told of every call, also of those that are refused. */
  telemetry: Telemetry;
}

/**
 * Makes what decides from the headers alone, before a byte of the body is read, whether a call
 * is admitted. Every transport asks it.
 */
export function createGate(options: GateOptions) {
  const { maxInFlight, authenticate, telemetry } = options;
  // Whatever one caller does, some slots are left for the others.
  const slots = createSlots(maxInFlight, Math.ceil((maxInFlight * 7) / 8));
  const connectionOf = createConnectionLookup();

  async function authorise(call: Call, authenticate: Authenticate): Promise<void> {
    const caller = await authenticate(call.connection, call.head.exchange);
    call.values.set(callerKey, caller).set(principalKey, caller.principal);
    const needed = scopeOf(call.method);
    if (!caller.scopes.has(needed)) throw scopeMissing(needed);
  }

  function follow(head: CallHead): Call {
    const call = new Call(head, connectionOf(head.exchange.socket), options);
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
    async admit(head: CallHead): Promise<Call> {
      const call = follow(head);
      try {
        if (authenticate !== undefined) await authorise(call, authenticate);
        call.throwIfEnded();
        call.onClose(slots.acquire(call.values.get(principalKey)));
        head.exchange.use();
        return call;
      } catch (error) {
        throw call.fail(error);
      }
    },
    /**
     * Accepts whoever shows valid credentials, where any are needed, and takes no slot.
     *
     * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE or
     *   OVERLOADED
     */
    async identify(exchange: Exchange): Promise<void> {
      const connection = connectionOf(exchange.socket);
      try {
        await authenticate?.(connection, exchange);
      } catch (error) {
        const { peer } = connection;
        telemetry.refuse({ peer, reason: reasonOf(error) });
        throw error;
      }
    },
    /** A call that anybody may make: it holds no slot and is not counted. */
    open(head: CallHead): Call {
      if (head.method.methodKind !== "unary") head.exchange.use();
      return new Call(head, connectionOf(head.exchange.socket), options);
    },
    /** Counts a call that was refused before the gate was asked. */
    refuse: (head: CallHead, reason: ConnectError): void => void follow(head).fail(reason),
    /** How many calls are admitted and not ended. */
    get inFlight(): number {
      return slots.held;
    },
    /** Resolves when no call is in flight. */
    whenEmpty: (): Promise<void> => slots.whenFree(),
  };
}

/** What a caller must be allowed to do to make a call. */
function scopeOf({ idempotency }: DescMethod): Scope {
  const isRead = idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
  return isRead ? "investors:read" : "investors:write";
}
