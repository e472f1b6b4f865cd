import { createHistogram } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import type { Server } from "../server.ts";
import type { Work } from "../work.ts";
import { openHttp1 } from "./http1.ts";
import { openGrpc } from "./http2.ts";

/** A connection by which calls are made: each resolves with the message of its reply. */
type Connection = ReturnType<typeof openHttp1 | typeof openGrpc>;

/** How a load went. */
export interface Measured {
  /** Calls a second. */
  rate: number;
  /** Times of a call in milliseconds. */
  p50: number;
  p99: number;
  /** CPU time of the server a call, in microseconds. */
  cpu: number;
}

/** The time in milliseconds until client and server are warm. */
const warmUpMs = 300;
/** How long the last calls may take, in milliseconds. */
const patienceMs = 60_000;
const callersPerGrpcConnection = 16;

/**
 * Has callers make one call after the other, and measures for some seconds once they are warm.
 *
 * @returns what was measured, and the number of all calls, those of the warm-up included
 * @throws {Error} a reply was not right
 */
export async function putLoad(
  server: Server,
  { grpcPath, next }: Work,
  callers: number,
  seconds: number,
): Promise<{ measured: Measured; calls: number }> {
  const sharing = grpcPath === undefined ? 1 : callersPerGrpcConnection;
  const connections = Array.from({ length: Math.ceil(callers / sharing) }, () =>
    grpcPath === undefined ? openHttp1(server.port) : openGrpc(server.port, grpcPath),
  );
  const close = () => {
    for (const connection of connections) connection.close();
  };
  const timer = setTimeout(close, warmUpMs + seconds * 1_000 + patienceMs);
  const histogram = createHistogram({ figures: 3 });
  const start = performance.now() + warmUpMs;
  const end = start + seconds * 1_000;
  let calls = 0;

  async function callAgain(connection: Connection): Promise<void> {
    for (let begun = performance.now(); begun < end; begun = performance.now()) {
      const { message, expected } = next();
      const reply = await connection.call(message);
      if (!reply.includes(expected, 0, "latin1")) {
        throw new Error(`${server.name} replied without ${expected}`);
      }
      calls += 1;
      const done = performance.now();
      if (done >= start && done <= end) histogram.record(Math.ceil((done - begun) * 1_000));
    }
  }

  async function usageAt(time: number) {
    await delay(time - performance.now());
    return { cpu: server.cpuTime(), calls };
  }

  const [before, after] = await Promise.all([
    usageAt(start),
    usageAt(end),
    ...Array.from({ length: callers }, (_, i) =>
      callAgain(connections[i % connections.length] as Connection),
    ),
  ]).finally(() => {
    clearTimeout(timer);
    close();
  });
  return {
    measured: {
      rate: histogram.count / seconds,
      p50: histogram.percentile(50) / 1_000,
      p99: histogram.percentile(99) / 1_000,
      cpu: (after.cpu - before.cpu) / (after.calls - before.calls),
    },
    calls,
  };
}
