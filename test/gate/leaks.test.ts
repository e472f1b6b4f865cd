/** Calls end in every way that they can, and nothing of them stays in memory. */
import { once } from "node:events";
import { constants } from "node:http2";
import type { Socket } from "node:net";
import { expect, it } from "vitest";
import { encode } from "../support/random-calls.ts";
import { frame, messages, openCall, paths, rawConnection } from "../support/raw-grpc.ts";
import { aCreate, institution } from "../support/records.ts";
import {
  ask,
  lockDatabase,
  preload,
  startService,
  untilInFlight,
  waitFor,
} from "../support/service.ts";
import { http1, openWire } from "../support/tcp.ts";

const { reflect, list, create } = paths;
// So short that it is text on the wire.
const creation = aCreate({ firstName: "Ada", city: "" });

/** The messages of calls of RPC. */
const rpcs: [path: string, message: Buffer][] = [
  [reflect, messages.listServices.subarray(5)],
  [list, messages.fullPage.subarray(5)],
  [create, encode({ method: "create", input: creation })],
];

/** All calls in the forms of all RPC protocols. */
const forms = rpcs.flatMap(([path, message]) =>
  ["grpc", "grpc-web", path === reflect ? "connect+proto" : "proto"].map((type) => ({
    ...{ path, type: `application/${type}` },
    body: type === "proto" ? message : frame(message),
  })),
);
type Form = (typeof forms)[number];

const json = JSON.stringify(institution);
const requests = [
  http1("GET", "/v1/investors", {}),
  http1("GET", "/v1/investors?pageSize=1000", {}),
  http1("POST", "/v1/investors", { "content-type": "application/json" }, json),
];

/** What the ends of calls differ in. */
interface Ending {
  /** The calls wait: for their ends and the database, or for their client to read the reply. */
  isHeld?: boolean;
  headers?: Record<string, string>;
  maxAge?: string;
}

/** Makes a call over HTTP/2, on a connection of its own. */
function openHttp2(port: number, { path, type, body }: Form, of: Ending) {
  const isUnread = of.isHeld && [list, reflect].includes(path);
  const settings = isUnread ? { initialWindowSize: 0 } : {};
  const session = rawConnection(port, settings);
  let socket: Socket | undefined;
  // What the session itself gives may not be reset.
  session.once("connect", (_, own: Socket) => {
    socket = own;
  });
  const stream = openCall(session, path, { "content-type": type, ...of.headers });
  stream.write(body);
  const isCreate = path === create;
  if (path !== reflect && !(of.isHeld && isCreate)) stream.end();
  if (!isUnread) stream.resume();
  return {
    responded: path === reflect && once(stream, "response"),
    closed: once(session, "close") as Promise<unknown>,
    /** Whether it is held, if calls are: before the end of a create, or by a reply that is not read. */
    waits: isCreate || path === list,
    end: () => void stream.end(),
    reset: () => stream.close(constants.NGHTTP2_CANCEL),
    close: () => session.destroy(),
    kill: () => void socket?.resetAndDestroy(),
  };
}

type Opened = ReturnType<typeof openHttp2>;

/** The same over HTTP/1.1. */
function openHttp1(port: number, request: string, { isHeld }: Ending): Opened {
  const waits = /^POST \S*(investors|CreateInvestor) /.test(request);
  const sent = isHeld && waits ? request.length - 1 : request.length;
  const { socket, closed } = openWire(port, request.slice(0, sent));
  const kill = () => void socket.resetAndDestroy();
  return {
    ...{ responded: false, closed, waits, reset: kill, kill },
    end: () => void socket.write(request.slice(sent)),
    close: () => void socket.destroy(),
  };
}

/** Has a service say, on SIGUSR2, how much it holds after a garbage collection. */
const census = preload(`
  import { EventEmitter } from "node:events";
  import { queryObjects } from "node:v8";
  const count = (kind) => queryObjects(kind, { format: "count" });
  process.on("SIGUSR2", () => console.error("holds", count(EventEmitter), count(EventTarget)));`);

it.each<[string, Ending, (call: Opened) => unknown]>([
  ["come to their end", {}, ({ end }) => end()],
  ["are reset", { isHeld: true }, ({ reset }) => reset()],
  ["lose their connection, which is closed", { isHeld: true }, ({ close }) => close()],
  ["lose their connection, which is killed", { isHeld: true }, ({ kill }) => kill()],
  [
    "reach their deadline",
    { headers: { "grpc-timeout": "300m", "connect-timeout-ms": "300" } },
    () => {},
  ],
  // A connection that has replied is left to its client for longer.
  ["have an old connection", { maxAge: "1s" }, ({ responded, closed }) => responded && closed],
])("calls leave nothing in memory if they %s", async (_, ending, end) => {
  const { isHeld = false, headers = {}, maxAge = "1h" } = ending;
  const service = await startService({
    ...{ MAX_CONNECTION_AGE: maxAge, NODE_OPTIONS: census },
    // All that are held have to be in flight at once.
    REQUEST_TIMEOUT: isHeld ? "1h" : "1s",
  });
  const { port } = service;

  async function endAll(): Promise<void> {
    const opened = forms.map((form) => openHttp2(port, form, ending));
    for (const request of requests) opened.push(openHttp1(port, request, ending));
    for (const { path, type, body } of forms) {
      if (path === reflect || type === "application/grpc") continue;
      const request = http1("POST", path, { "content-type": type, ...headers }, String(body));
      opened.push(openHttp1(port, request, ending));
    }
    await Promise.all(opened.map(({ responded }) => responded));
    if (isHeld) await untilInFlight(service, opened.filter(({ waits }) => waits).length);
    const release = isHeld ? lockDatabase(service) : () => {};
    for (const call of opened) if (isHeld && call.waits) call.end();
    // Until most have come to the database; they may also fail, if it is locked for too long.
    await ask(service, "/healthz");
    await Promise.all(opened.map(end));
    release();
    await untilInFlight(service, 0);
    for (const { close } of opened) close();
  }

  async function holdings(): Promise<string> {
    const before = service.output().length;
    service.child.kill("SIGUSR2");
    const [line] = await waitFor(() => /holds .*\n/.exec(service.output().slice(before)));
    return line;
  }

  // With what is made once, and when all of the first calls has gone.
  await endAll();
  let before = "";
  const isSettled = async () => {
    const last = before;
    before = await holdings();
    return before === last;
  };
  await expect.poll(isSettled, { interval: 1_000 }).toBe(true);
  await endAll();
  await expect.poll(holdings, { interval: 200 }).toBe(before);
});
