import type { DescMethod } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel as IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { scopeMissing } from "../service/errors.ts";
import { principalKey } from "../service/ids.ts";
import type { Authenticate } from "./authentication.ts";
import { Call, type CallHead } from "./call.ts";
import type { Scope } from "./caller.ts";
import { createConnectionLookup } from "./connection.ts";
import { createPlaces } from "./places.ts";
import type { Telemetry } from "./telemetry.ts";

/**
 * Decides from the headers alone, before a byte of the body is read, whether a call may
 * come in. Every transport asks it.
 */
export interface Gate {
  /**
   * Lets a call in: its caller is known and may make it, and there is room. It holds its place
   * until its reply has closed; one that is refused never holds any.
   *
   * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID, ISSUER_UNAVAILABLE,
   *   SCOPE_MISSING or OVERLOADED; CANCELLED, if its client left meanwhile
   */
  enter(head: CallHead): Promise<Call>;
  /**
   * Lets in whoever shows valid credentials, where any are needed, without taking a place.
   *
   * @throws {ConnectError} CREDENTIALS_MISSING, CREDENTIALS_INVALID or ISSUER_UNAVAILABLE
   */
  identify(head: Pick<CallHead, "socket" | "header">): Promise<void>;
  /** How many calls are inside. */
  readonly inFlight: number;
  /** Resolves when no call is inside. */
  whenEmpty(): Promise<void>;
}

/** What a {@link createGate gate} needs. */
export interface GateOptions {
  /** How many calls may be inside at once. */
  maxInFlight: number;
  /** Tells who calls; if absent, anybody may. */
  authenticate?: Authenticate | undefined;
  /** Is told of every call, also of those that are refused. */
  telemetry: Telemetry;
}

/** Makes a gate. */
export function createGate({ maxInFlight, authenticate, telemetry }: GateOptions): Gate {
  const places = createPlaces(maxInFlight);
  const connectionOf = createConnectionLookup();

  async function authorise(call: Call, authenticate: Authenticate): Promise<void> {
    const { principal, scopes } = await authenticate(call.connection, call.head.header);
    const needed = scopeOf(call.head.method);
    if (!scopes.has(needed)) throw scopeMissing(needed);
    call.values.set(principalKey, principal);
  }

  return {
    async enter(head) {
      const call = new Call(head, connectionOf(head.socket));
      telemetry.follow(call);
      try {
        if (authenticate !== undefined) await authorise(call, authenticate);
        call.throwIfClosed();
        call.onClose(places.take());
        return call;
      } catch (error) {
        call.fail(error);
        throw error;
      }
    },
    async identify({ socket, header }) {
      await authenticate?.(connectionOf(socket), header);
    },
    get inFlight() {
      return places.taken;
    },
    whenEmpty: () => places.whenEmpty(),
  };
}

/** What a caller must be allowed to do to make a call. */
function scopeOf({ idempotency }: DescMethod): Scope {
  const isRead = idempotency === IdempotencyLevel.NO_SIDE_EFFECTS;
  return isRead ? "investors:read" : "investors:write";
}
