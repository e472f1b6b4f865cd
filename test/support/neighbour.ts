/** Clients that ask for much, on a thread that the service in this process does not slow down. */
import { once } from "node:events";
import { connect, constants, type OutgoingHttpHeaders } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

/** What the clients ask for, all the same, each again and again. */
export interface Asked {
  path: string;
  headers?: OutgoingHttpHeaders;
  /** It is posted; a GET if absent. */
  body?: Uint8Array;
  /** How many calls there are at once, 64 on each connection; one if absent. */
  calls?: number;
  /** After how many milliseconds a call is reset; never if absent. */
  resetAfter?: number;
}

/** Starts the clients; resolves once the first of them has had a reply. */
export async function startNeighbour(asked: Asked, port: number) {
  const thread = new Worker(new URL(import.meta.url), { workerData: { asked, port } });
  await once(thread, "message");
  let failure: unknown;
  thread.on("error", (error) => {
    failure = error;
  });
  return {
    /** @throws the first call that failed */
    async stop(): Promise<void> {
      await thread.terminate();
      if (failure !== undefined) throw failure;
    },
  };
}

/** Makes a call, and resolves when it has ended. */
type Call = () => Promise<void>;

function open({ path, headers, body, resetAfter }: Asked, port: number): Call {
  const settings = { initialWindowSize: 2 ** 31 - 1 };
  const session = connect(`http://localhost:${port}`, { settings });
  session.once("connect", () => session.setLocalWindowSize(2 ** 31 - 1));
  const method = body ? "POST" : "GET";
  return async () => {
    const stream = session.request({ ":method": method, ":path": path, ...headers });
    const closed = once(stream.resume(), "close");
    stream.end(body);
    stream.once("response", ({ ":status": status }) => {
      if (status !== 200) throw new Error(`the reply has status ${status}`);
      parentPort?.postMessage("replied");
    });
    if (resetAfter !== undefined) {
      await delay(resetAfter);
      stream.close(constants.NGHTTP2_CANCEL);
    }
    await closed;
  };
}

async function callAgain(call: Call): Promise<never> {
  for (;;) await call();
}

if (!isMainThread && workerData?.asked !== undefined) {
  const { asked, port }: { asked: Asked; port: number } = workerData;
  const { calls = 1 } = asked;
  for (let connections = 0; connections < calls / 64; connections += 1) {
    const call = open(asked, port);
    for (let i = 0; i < Math.min(calls, 64); i += 1) void callAgain(call);
  }
}
