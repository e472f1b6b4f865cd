/** Clients that ask for much, on a thread that the service in this process does not slow down. */
import { once } from "node:events";
import { Agent, type OutgoingHttpHeaders, request } from "node:http";
import { connect, constants } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

/** What the clients ask for, all the same, each again and again. */
export interface Asked {
  over: "HTTP/1.1" | "HTTP/2";
  path: string;
  headers?: OutgoingHttpHeaders;
  /** It is posted; a GET if absent. */
  body?: Uint8Array;
  /** How many connections there are; one if absent. */
  connections?: number;
  /** How many calls each connection has at once; one if absent. */
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

function report(status: unknown): void {
  if (status !== 200) throw new Error(`the reply has status ${status}`);
  parentPort?.postMessage("replied");
}

function openHttp1({ path, headers, body }: Asked, port: number): Call {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const method = body ? "POST" : "GET";
  return async () => {
    const sent = request({ host: "localhost", port, path, method, headers, agent });
    sent.end(body);
    const [response] = await once(sent, "response");
    report(response.statusCode);
    await once(response.resume(), "end");
  };
}

function openHttp2({ path, headers, body, resetAfter }: Asked, port: number): Call {
  const settings = { initialWindowSize: 2 ** 31 - 1 };
  const session = connect(`http://localhost:${port}`, { settings });
  session.once("connect", () => session.setLocalWindowSize(2 ** 31 - 1));
  const method = body ? "POST" : "GET";
  return async () => {
    const stream = session.request({ ":method": method, ":path": path, ...headers });
    stream.end(body);
    stream.once("response", ({ ":status": status }) => report(status)).resume();
    const closed = once(stream, "close");
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
  const open = asked.over === "HTTP/2" ? openHttp2 : openHttp1;
  for (let n = 0; n < (asked.connections ?? 1); n += 1) {
    const call = open(asked, port);
    for (let i = 0; i < (asked.calls ?? 1); i += 1) void callAgain(call);
  }
}
