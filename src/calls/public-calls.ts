import { overloaded } from "../errors.ts";
import { largestGroup } from "../http/connection-set.ts";
import type { Call } from "./call.ts";
import { createSlots, limits } from "./limits.ts";

/**
 * Creates the count of public calls of one kind, which anybody may make. When it is reached, a call of
 * the host that has most of them ends for a new one, so that nobody keeps others out.
 *
 * @param what what they are, in the plural
 * @param count how many there may be
 * @param yielding which call of that host ends: the oldest, if its client has most likely stalled, or
 *   the youngest, if its client most likely keeps coming back
 */
export function createPublicCalls(what: string, count: number, yielding: "oldest" | "youngest") {
  const share = limits.publicCallsOfConnection;
  const slots = createSlots(what, count, share, "connection");
  // One for all calls, since the stack of an error is costly.
  const gaveWay = overloaded(what);
  /** What stops counting each of them, in the order in which they came. */
  const calls = new Map<Call, () => void>();

  function makeRoom(): void {
    const ofHost = largestGroup(calls.keys(), ({ head }) => head.connection.host);
    const call = ofHost.at(yielding === "oldest" ? 0 : -1);
    if (call === undefined) return;
    calls.get(call)?.();
    call.giveWay(gaveWay);
  }

  return {
    endAll(): void {
      for (const call of calls.keys()) call.giveWay(gaveWay);
    },
    /** Counts a call until it closes. @throws {ConnectError} OVERLOADED, if its connection has its share */
    add(call: Call): void {
      const { address } = call.head.connection.peer;
      if (slots.held >= count && slots.heldBy(address) < share) makeRoom();
      const free = slots.acquire(address);
      const release = () => {
        if (calls.delete(call)) free();
      };
      calls.set(call, release);
      call.onClose(release);
    },
  };
}
