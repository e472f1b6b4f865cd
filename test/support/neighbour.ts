/** Clients that ask for much, on a thread that the service in this process does not slow down. */
import { once } from "node:events";
import { type OutgoingHttpHeaders, Agent as PlainAgent, request } from "node:http";
import { connect, constants } from "node:http2";
import { request as requestOverTls, Agent as TlsAgent } from "node:https";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

/** What the clients ask for, all the same, each again and again. */
export interface Asked {
  over: "HTTP/1.1" | "HTTPS" | "HTTP/2" | "gRPC";
  method?: "GET" | "POST";
  path: string;
  headers?: OutgoingHttpHeaders;
  body?: Uint8Array;
  /** How many connections there are; one if absent. */
  connections?: number;
  /** How many calls each connection has at once; one if absent. */
  calls?: number;
  /** When a call is reset: at the first byte of its reply, or after so many milliseconds. */
  resetAfter?: "reply" | number;
}

/** The ports of the service by what is spoken there, and the authority of its certificate. */
interface Addresses {
  ports: Record<Asked["over"], number>;
  ca: string;
}

/** Starts the clients; resolves once the first of them has had a reply. */
export async function startNeighbour(asked: Asked, addresses: Addresses) {
  const thread = new Worker(new URL(import.meta.url), { workerData: { asked, addresses } });
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

function openHttp1(
  { over, path, method = "GET", ...asked }: Asked,
  { ports, ca }: Addresses,
): Call {
  const limits = { keepAlive: true, maxSockets: 1 };
  const agent = over === "HTTPS" ? new TlsAgent({ ...limits, ca }) : new PlainAgent(limits);
  const ask = over === "HTTPS" ? requestOverTls : request;
  const { headers } = asked;
  return async () => {
    const sent = ask({ host: "localhost", port: ports[over], path, method, headers, agent });
    sent.end(asked.body);
    const [response] = await once(sent, "response");
    report(response.statusCode);
    await once(response.resume(), "end");
  };
}

function openHttp2(
  { over, path, method = "POST", ...asked }: Asked,
  { ports, ca }: Addresses,
): Call {
  const scheme = over === "gRPC" ? "http" : "https";
  const settings = { initialWindowSize: 2 ** 31 - 1 };
  const session = connect(`${scheme}://localhost:${ports[over]}`, { ca, settings });
  session.once("connect", () => session.setLocalWindowSize(2 ** 31 - 1));
  return async () => {
    const stream = session.request({ ":method": method, ":path": path, ...asked.headers });
    stream.end(asked.body);
    stream.once("response", ({ ":status": status }) => report(status)).resume();
    const closed = once(stream, "close");
    const { resetAfter } = asked;
    if (resetAfter !== undefined) {
      await (resetAfter === "reply" ? once(stream, "data") : delay(resetAfter));
      stream.close(constants.NGHTTP2_CANCEL);
    }
    await closed;
  };
}

async function callAgain(call: Call): Promise<never> {
  for (;;) await call();
}

if (!isMainThread && workerData?.asked !== undefined) {
  const { asked, addresses }: { asked: Asked; addresses: Addresses } = workerData;
  const open = asked.over === "gRPC" || asked.over === "HTTP/2" ? openHttp2 : openHttp1;
  for (let n = 0; n < (asked.connections ?? 1); n += 1) {
    const call = open(asked, addresses);
    for (let i = 0; i < (asked.calls ?? 1); i += 1) void callAgain(call);
  }
}
