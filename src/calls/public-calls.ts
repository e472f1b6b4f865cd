import { overloaded } from "../errors.ts";
import { largestGroup } from "../http/connection-set.ts";
import type { Call } from "./call.ts";
import { createSlots, limits } from "./limits.ts";

/**
 * Limits public calls of one kind, which anybody may make. At the limit, a new call replaces one of
 * the host with the most calls, so that nobody can keep others out.
 *
 * @param what what the calls are, in the plural
 * @param count the most calls at once
 * @param yielding which call of that host ends: the oldest, where its client has probably stalled,
 * or the youngest, where its client probably keeps reconnecting
 */
export function createPublicCalls(what: string, count: number, yielding: "oldest" | "youngest") {
  const share = limits.publicCallsOfConnection;
  const slots = createSlots(what, count, share, "connection");
  // Shared by all calls, since an error's stack is costly.
  const gaveWay = overloaded(what);
  /** Functions that release the calls' slots, in order of arrival. */
  const calls = new Map<Call, () => void>();

  function makeRoom(): void {
    const ofHost = largestGroup(calls.keys(), ({ head }) => head.connection.host);
    const call = ofHost.at(yielding === "oldest" ? 0 : -1);
    if (call === undefined) return;
    calls.get(call)?.();
    // While its client reads nothing, a stream would not fail by itself.
    call.giveWay(call.recordFailure(gaveWay));
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
