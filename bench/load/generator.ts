/**
 * A thread that makes calls and times them. It gets a {@link Load} and replies with a
 * {@link Result}, or fails at the first reply that is not right.
 */
import { createHistogram, type RecordableHistogram } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import { cpuTimeOf } from "../cpu.ts";
import type { Connection } from "./connection.ts";
import { openHttpConnection } from "./http1-connection.ts";
import { openGrpcConnection } from "./http2-connection.ts";

/** The calls that one thread makes. */
export interface Load {
  /** The process of the server, and its ports. */
  pid: number;
  port: number;
  httpPort: number;
  /** How many calls are in flight at once. */
  callers: number;
  /** The time in seconds, after {@link warmUpMs}. */
  seconds: number;
  /** Calls a second; as many as the callers can make if undefined. */
  rate: number | undefined;
  work: Work;
}

/** What to send, and what must be in the reply. Messages by HTTP/1.1 are whole requests. */
export type Work = ({ protocol: "grpc"; path: string } | { protocol: "http" }) &
  (
    | {
        /** The mark in the message is replaced by a name that no other has. */
        kind: "create";
        message: Uint8Array;
        mark: string;
        prefix: string;
      }
    | { kind: "repeat"; messages: { message: Uint8Array; expected: string }[] }
  );

/** How a load went. */
export interface Result {
  /** How many of all calls, those of the warm-up included, stored a record. */
  created: number;
  /** Times of calls in microseconds. */
  histogram: RecordableHistogram;
  /** CPU time of the server in microseconds, and the calls that were done within it. */
  cpuTime: number;
  cpuCalls: number;
}

/** The time in milliseconds until this thread itself is warm. */
const warmUpMs = 300;
const callersPerGrpcConnection = 16;
const load = workerData as Load;
parentPort?.postMessage(await run(load));

async function run({ pid, port, httpPort, callers, seconds, rate, work }: Load): Promise<Result> {
  const perConnection = work.protocol === "grpc" ? callersPerGrpcConnection : 1;
  const connections = await Promise.all(
    Array.from({ length: Math.ceil(callers / perConnection) }, () =>
      work.protocol === "grpc" ? openGrpcConnection(port, work.path) : openHttpConnection(httpPort),
    ),
  );
  const nextTask = createTasks(work);
  const histogram = createHistogram({ figures: 3 });
  const begin = performance.now();
  const start = begin + warmUpMs;
  const end = start + seconds * 1_000;
  let calls = 0;
  let scheduled = 0;

  async function callAgain(connection: Connection): Promise<void> {
    for (;;) {
      let begun = performance.now();
      if (rate !== undefined) {
        const due = begin + (scheduled++ * 1_000) / rate;
        const early = due - performance.now();
        if (early > 1) await delay(early);
        // From when it was due, however late it is sent (coordinated omission).
        begun = Math.min(due, performance.now());
      }
      if (begun >= end) return;
      const { message, expected } = nextTask();
      const reply = await connection.call(message);
      if (!reply.includes(expected, 0, "latin1")) throw new Error(`no ${expected} in the reply`);
      calls += 1;
      const done = performance.now();
      if (done < start || done > end) continue;
      histogram.record(Math.max(1, Math.round((done - begun) * 1_000)));
    }
  }

  async function usageAt(time: number) {
    await delay(time - performance.now());
    return { cpuTime: cpuTimeOf(pid), calls };
  }

  const [before, after] = await Promise.all([
    usageAt(start),
    usageAt(end),
    ...Array.from({ length: callers }, (_, i) =>
      callAgain(connections[i % connections.length] as Connection),
    ),
  ]);
  for (const connection of connections) connection.close();
  return {
    created: work.kind === "create" ? calls : 0,
    histogram,
    cpuTime: after.cpuTime - before.cpuTime,
    cpuCalls: after.calls - before.calls,
  };
}

function createTasks(work: Work): () => { message: Buffer; expected: string } {
  let count = 0;
  if (work.kind === "repeat") {
    const tasks = work.messages.map(({ message, expected }) => ({
      message: Buffer.from(message),
      expected,
    }));
    return () => tasks[count++ % tasks.length] as (typeof tasks)[number];
  }
  const template = Buffer.from(work.message);
  const at = template.indexOf(work.mark);
  return () => {
    const expected = `${work.prefix}${(count++).toString(36)}`.padEnd(work.mark.length, "_");
    const message = Buffer.from(template);
    message.write(expected, at, "latin1");
    return { message, expected };
  };
}
