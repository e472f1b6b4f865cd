import type { DescMethod } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import type { ConnectError } from "@connectrpc/connect";
import type { Exchange } from "../http/exchange.ts";
import { overloaded, scopeMissing } from "../service/errors.ts";
import { principalKey } from "../service/ids.ts";
import type { Authenticate, Scope } from "./authentication.ts";
import { Call, type CallHead, type CallOptions } from "./call.ts";
import { createConnectionLookup } from "./connection.ts";
import type { Telemetry } from "./telemetry.ts";

/**
 * Decides from the headers alone, before a byte of the body is read, whether a call is
 * admitted. Every transport asks it.
 */
export interface Gate {
  /**
   * Admits a call: its caller is known and may make it, and a slot is free. The call holds the
   * slot until its reply has closed; one that is refused never holds any.
   *
   * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE,
   *   SCOPE_MISSING or OVERLOADED; CANCELLED, if its client left meanwhile
   */
  admit(head: CallHead): Promise<Call>;
  /**
   * Accepts whoever shows valid credentials, where any are needed, and takes no slot.
   *
   * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID or ISSUER_UNAVAILABLE
   */
  identify(exchange: Exchange): Promise<void>;
  /** A call that anybody may make: it holds no slot and is not counted. */
  open(head: CallHead): Call;
  /** Counts a call that was refused before the gate was asked. */
  refuse(head: CallHead, reason: ConnectError): void;
  /** How many calls are admitted and not ended. */
  readonly inFlight: number;
  /** Resolves when no call is in flight. */
  whenEmpty(): Promise<void>;
}

/** What a {@link createGate gate} needs. */
export interface GateOptions extends CallOptions {
  /** How many calls may be in flight at once. */
  maxInFlight: number;
  /** Tells who calls; if absent, anybody may. */
  authenticate?: Authenticate | undefined;
  /** Is told of every call, also of those that are refused. */
  telemetry: Telemetry;
}

/** Makes a gate. */
export function createGate(options: GateOptions): Gate {
  const { maxInFlight, authenticate, telemetry } = options;
  const slots = createSlots(maxInFlight);
  const connectionOf = createConnectionLookup();

  async function authorise(call: Call, authenticate: Authenticate): Promise<void> {
    const { principal, scopes } = await authenticate(call.connection, call.head.exchange);
    const needed = scopeOf(call.method);
    if (!scopes.has(needed)) throw scopeMissing(needed);
    call.values.set(principalKey, principal);
  }

  function follow(head: CallHead): Call {
    const call = new Call(head, connectionOf(head.exchange.socket), options);
    telemetry.follow(call);
    return call;
  }

  return {
    async admit(head) {
      const call = follow(head);
      try {
        if (authenticate !== undefined) await authorise(call, authenticate);
        call.throwIfEnded();
        call.onClose(slots.acquire());
        head.exchange.use();
        return call;
      } catch (error) {
        throw call.fail(error);
      }
    },
    async identify(exchange) {
      await authenticate?.(connectionOf(exchange.socket), exchange);
    },
    open(head) {
      if (head.method.methodKind !== "unary") head.exchange.use();
      return new Call(head, connectionOf(head.exchange.socket), options);
    },
    refuse: (head, reason) => void follow(head).fail(reason),
    get inFlight() {
      return slots.held;
    },
    whenEmpty: () => slots.whenFree(),
  };
}

/** A limited number of slots. */
export interface Slots {
  /**
   * Acquires one. The caller releases it, once, by calling what this returns.
   *
   * @throws {ConnectError} OVERLOADED, if none is free
   */
  acquire(): () => void;
  /** How many are held. */
  readonly held: number;
  /** Resolves when none is held. */
  whenFree(): Promise<void>;
}

/** Makes `count` slots. */
export function createSlots(count: number): Slots {
  let held = 0;
  let free: PromiseWithResolvers<void> | undefined;

  function release(): void {
    held -= 1;
    if (held > 0) return;
    free?.resolve();
    free = undefined;
  }

  return {
    acquire() {
      if (held >= count) throw overloaded();
      held += 1;
      return release;
    },
    get held() {
      return held;
    },
    async whenFree() {
      if (held === 0) return;
      free ??= Promise.withResolvers();
      await free.promise;
    },
  };
}

/** What a caller must be allowed to do to make a call. */
function scopeOf({ idempotency }: DescMethod): Scope {
  const isRead = idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
  return isRead ? "investors:read" : "investors:write";
}
