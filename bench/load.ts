import { type ClientHttp2Session, connect } from "node:http2";

/** A call to make and what its answer must be. */
export interface Task {
  path: string;
  /** The message of the request, serialised. */
  request: Uint8Array;
  /** Whether the message of the answer is the right one. */
  isRight(answer: Buffer): boolean;
}

/** What a load of calls took. */
export interface Result {
  /** Calls answered in a second. */
  rate: number;
  /** The median time of a call in milliseconds. */
  p50: number;
  /** The time in milliseconds that one call in a hundred exceeds. */
  p99: number;
}

const callersPerConnection = 16;

/**
 * Makes gRPC calls by as many callers at once, each waiting for its answer before its next
 * call, until all tasks are done.
 *
 * @throws {Error} at the first answer that is not right
 */
export async function load(port: number, callers: number, tasks: Task[]): Promise<Result> {
  const connections = Array.from({ length: Math.ceil(callers / callersPerConnection) }, () =>
    connect(`http://127.0.0.1:${port}`),
  );
  const times: number[] = [];
  let next = 0;
  const start = performance.now();
  try {
    await Promise.all(
      Array.from({ length: callers }, async (_, i) => {
        const session = connections[i % connections.length] as ClientHttp2Session;
        for (let task = tasks[next++]; task !== undefined; task = tasks[next++]) {
          const sent = performance.now();
          await call(session, task);
          times.push(performance.now() - sent);
        }
      }),
    );
  } finally {
    for (const each of connections) each.close();
  }
  const seconds = (performance.now() - start) / 1_000;
  times.sort((a, b) => a - b);
  const quantile = (q: number) => times[Math.floor(times.length * q)] ?? Number.NaN;
  return { rate: tasks.length / seconds, p50: quantile(0.5), p99: quantile(0.99) };
}

function call(session: ClientHttp2Session, { path, request, isRight }: Task): Promise<void> {
  return new Promise((resolve, reject) => {
    const stream = session.request({
      ":method": "POST",
      ":path": path,
      "content-type": "application/grpc",
      te: "trailers",
    });
    const chunks: Buffer[] = [];
    let status: unknown;
    const see = (headers: Record<string, unknown>) => {
      status = headers["grpc-status"] ?? status;
    };
    stream.on("response", see);
    stream.on("trailers", see);
    stream.on("data", (chunk) => chunks.push(chunk));
    stream.on("error", reject);
    stream.on("close", () => {
      const answer = Buffer.concat(chunks).subarray(5);
      if (status === "0" && isRight(answer)) resolve();
      else reject(new Error(`${path} answered ${status}: ${answer.toString("latin1")}`));
    });
    const frame = Buffer.alloc(5 + request.length);
    frame.writeUInt32BE(request.length, 1);
    frame.set(request, 5);
    stream.end(frame);
  });
}
