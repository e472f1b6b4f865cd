/**
 * A thread that makes calls and times them. It gets a {@link Load} and answers with a
 * {@link Result}, or fails at the first answer that is not right.
 */
import { createHistogram, type RecordableHistogram } from "node:perf_hooks";
import { setTimeout as delay } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import type { Connection } from "./connection.ts";
import { openHttpConnection } from "./http1-connection.ts";
import { openGrpcConnection } from "./http2-connection.ts";

/** The calls that one thread makes. */
export interface Load {
  protocol: "grpc" | "connect";
  port: number;
  path: string;
  /** How many calls are under way at once. */
  callers: number;
  /** The time in seconds, after a tenth of that to warm up. */
  seconds: number;
  /** Calls a second; as many as the callers can make if absent. */
  rate?: number;
  work: Work;
}

/** What to send, and what must be in the answer. */
export type Work =
  | {
      /** The mark in the message is replaced by a name that no other has. */ kind: "create";
      message: Uint8Array;
      mark: string;
      prefix: string;
    }
  | { kind: "repeat"; messages: { message: Uint8Array; expected: string }[] };

/** How a load went. */
export interface Result {
  calls: number;
  /** How many of all calls, those of the warm-up included, stored a record. */
  created: number;
  seconds: number;
  /** Times of calls in microseconds. */
  histogram: RecordableHistogram;
}

const callersPerGrpcConnection = 16;
const load = workerData as Load;
parentPort?.postMessage(await run(load));

async function run({ protocol, port, path, callers, seconds, rate, work }: Load): Promise<Result> {
  const perConnection = protocol === "grpc" ? callersPerGrpcConnection : 1;
  const open = protocol === "grpc" ? openGrpcConnection : openHttpConnection;
  const connections = await Promise.all(
    Array.from({ length: Math.ceil(callers / perConnection) }, () => open(port, path)),
  );
  const nextTask = createTasks(work);
  const histogram = createHistogram({ figures: 3 });
  const start = performance.now() + seconds * 100;
  const end = start + seconds * 1_000;
  let calls = 0;
  let created = 0;
  let scheduled = 0;

  async function callAgain(connection: Connection): Promise<void> {
    for (;;) {
      let begun = performance.now();
      if (rate !== undefined) {
        // From when it was due, however late it is sent (coordinated omission).
        begun = start - seconds * 100 + (scheduled++ * 1_000) / rate;
        const early = begun - performance.now();
        if (early > 1) await delay(early);
      }
      if (begun >= end) return;
      const { message, expected } = nextTask();
      const answer = await connection.call(message);
      if (!answer.includes(expected, 0, "latin1")) throw new Error(`no ${expected} in the answer`);
      if (work.kind === "create") created += 1;
      const done = performance.now();
      if (begun < start || done > end) continue;
      calls += 1;
      histogram.record(Math.max(1, Math.round((done - begun) * 1_000)));
    }
  }

  await Promise.all(
    Array.from({ length: callers }, (_, i) =>
      callAgain(connections[i % connections.length] as Connection),
    ),
  );
  for (const connection of connections) connection.close();
  return { calls, created, seconds, histogram };
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
