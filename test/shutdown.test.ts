import { once } from "node:events";
import { existsSync } from "node:fs";
import { get, type IncomingMessage } from "node:http";
import { buffer } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { fromBinary } from "@bufbuild/protobuf";
import { expect, inject, it } from "vitest";
import { InvestorSchema } from "../gen/investor/v1/investor_pb.js";
import { makeFullFolder } from "./support/copying.ts";
import { temporaryFolder } from "./support/folder.ts";
import {
  clientPreface,
  firstCall,
  frameFlag,
  frameType,
  http2Frame,
  wideWindows,
} from "./support/http2-frames.ts";
import { listAll } from "./support/pages.ts";
import { messages, openCall, paths, rawConnection, replyOf } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import {
  accepts,
  anyPort,
  ask,
  createBody,
  end,
  grpcClient,
  hurry,
  runGroup,
  type Service,
  startService,
  untilInFlight,
  untilWritten,
  waitFor,
} from "./support/service.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

/** No call in flight is cut before the test is. */
const patient = { REQUEST_TIMEOUT: "10h", DRAIN_TIMEOUT: "10h" };

/** Starts a service with creates in flight that wait for their bodies. */
async function startWithCreates(env: NodeJS.ProcessEnv = {}) {
  const service = await startService({ ...patient, ...env });
  const session = rawConnection(service.port);
  const creates = Array.from({ length: 50 }, () => openCall(session, paths.create));
  await untilInFlight(service, creates.length);
  return { ...service, creates };
}

/** Tells a service to end, and waits until it has begun to. */
async function beginShutdown(service: Service): Promise<void> {
  service.child.kill("SIGTERM");
  await untilWritten(service, "shutting down");
}

/** The same, and leaves it time to end too early, since no event tells that it does not. */
async function beginLongShutdown(service: Service): Promise<void> {
  await beginShutdown(service);
  await waitFor(async () => !(await accepts(service.port)));
  await delay(1_000);
}

it("lets creates in flight finish, and stores them", async () => {
  // One after the other, they take longer than replies get to leave when no call is waited for.
  const fast = { NODE_OPTIONS: hurry(10, ["setTimeout"]) };
  const { creates, ...service } = await startWithCreates(fast);
  service.child.kill("SIGTERM");
  await waitFor(async () => !(await accepts(service.port)));
  const created: string[] = [];
  for (const create of creates) {
    const reply = await buffer(create.end(createBody()));
    created.push(fromBinary(InvestorSchema, reply.subarray(5)).id);
  }
  expect(await service.exited).toBe(0);
  const { investors } = await grpcClient(await startService({}, service.folder)).listInvestors({});
  expect(new Set(investors.map(({ id }) => id))).toEqual(new Set(created));
});

it("is not held up by health checks, open reflection, idle clients or silent connections", async () => {
  const service = await startService(patient);
  await grpcClient(service).createInvestor(aCreate());
  const session = rawConnection(service.port, { initialWindowSize: 0 });
  const unread = openCall(session, paths.reflect);
  unread.write(messages.listServices);
  await once(unread, "response");
  // Its client stays, and ignores that the connection is to end.
  const staying = openWire(service.port, firstCall(paths.reflect, messages.listServices, false));
  await expect.poll(staying.received).toContain("investor.v1.InvestorService");
  const strangers = rawConnection(service.port);
  for (const path of [paths.check, paths.reflect]) openCall(strangers, path);
  await once(openWire(service.port).socket, "connect");
  service.child.kill("SIGTERM");
  expect(await service.exited).toBe(0);
});

/** Lists a page over HTTP/2. */
const listing = Buffer.concat([firstCall(paths.list, messages.fullPage), wideWindows]);

/** The head of the frame that ends the reply to it. */
const lastFlags = frameFlag.endStream | frameFlag.endHeaders;
const lastTrailers = Buffer.from([frameType.headers, lastFlags, 0, 0, 0, 1]).toString("latin1");

it("is not held up by a client over HTTP/2 that called just before, and is gone", async () => {
  const service = await startService(patient);
  const { socket, received } = openWire(service.port, listing);
  await expect.poll(() => received().includes(lastTrailers)).toBe(true);
  // What it is sent is not answered, and its end never comes.
  socket.pause();
  const start = performance.now();
  expect(await end(service)).toBe(0);
  expect(performance.now() - start).toBeLessThan(8_000);
});

it("lets replies reach clients over HTTP/1.1 that are slow to read them", async () => {
  const service = await startService(patient, await makeFullFolder(130));
  const page = http1("GET", "/v1/investors?pageSize=1000", {});
  // More than the buffers of the connection hold, so that the last reply begins after the signal.
  const { socket, closed } = openWire(service.port, page.repeat(16));
  await once(socket, "data");
  socket.pause();
  await beginLongShutdown(service);
  socket.resume();
  const text = await closed;
  expect(statusesIn(text)).toEqual(Array(16).fill(200));
  expect(text).toMatch(/connection: close[\s\S]*\]$/i);
  expect(await service.exited).toBe(0);
});

it("lets replies reach clients over HTTP/2 that are slow to read them", async () => {
  const service = await startService(patient, await makeFullFolder(130));
  const { closed, socket } = openWire(service.port, listing);
  await once(socket, "data");
  socket.pause();
  await beginLongShutdown(service);
  // As every client does when it has read a part.
  const more = http2Frame(frameType.windowUpdate, frameFlag.none, 0, Buffer.from([0, 0, 0, 1]));
  await new Promise((sent) => socket.write(more, sent));
  socket.resume();
  expect((await closed).includes(lastTrailers)).toBe(true);
  expect(await service.exited).toBe(0);
});

it("stores nothing behind the last reply over HTTP/1.1, also while that is being sent", async () => {
  // More than the system takes on behalf of a client that does not read.
  const service = await startService({ DRAIN_DELAY: "5s" }, await makeFullFolder(1_000));
  const [slow, quick] = [openWire(service.port), openWire(service.port)];
  await beginShutdown(service);
  slow.socket.write(http1("GET", "/v1/investors", {}));
  await once(slow.socket, "data");
  slow.socket.pause();
  const body = JSON.stringify(institution);
  const create = http1("POST", "/v1/investors", { "content-type": "application/json" }, body);
  for (const { socket } of [slow, quick]) socket.write(create.repeat(3));
  const replies = statusesIn(await quick.closed);
  slow.socket.resume();
  expect(statusesIn(await slow.closed)).toEqual([200]);
  expect(await service.exited).toBe(0);
  const again = grpcClient(await startService({}, service.folder));
  expect(await listAll(again)).toHaveLength(1_000 + replies.length);
});

it("takes no new connections from when clients are told to leave theirs", async () => {
  const service = await startService();
  // It does not confirm that it was told.
  const { received } = openWire(service.port, clientPreface);
  await expect.poll(received).not.toBe("");
  service.child.kill("SIGTERM");
  const goAway = Buffer.from([frameType.goAway, 0, 0, 0, 0, 0]).toString("latin1");
  await expect.poll(received).toContain(goAway);
  expect(await accepts(service.port)).toBe(false);
});

it("serves on during the drain delay, while probes fail and HTTP/1.1 replies are the last", async () => {
  const service = await startService({ DRAIN_DELAY: "10h" });
  const getKept = async (path: string) => {
    const req = get({ port: service.port, path, headers: { connection: "keep-alive" } });
    const [{ statusCode, headers }] = (await once(req, "response")) as [IncomingMessage];
    return [statusCode, headers.connection];
  };
  expect(await getKept("/readyz")).toEqual([200, "keep-alive"]);
  await beginShutdown(service);
  expect(await getKept("/readyz")).toEqual([503, "close"]);
  const headers = { "content-type": "application/json" };
  const health = await ask(service, paths.check, { method: "POST", headers, body: "{}" });
  expect(await health.json()).toEqual({ status: "NOT_SERVING" });
  await grpcClient(service).createInvestor(aCreate());
  expect(await getKept("/v1/investors")).toEqual([200, "close"]);
});

it("ends at once at a second signal, whatever is waited for", async () => {
  const service = await startWithCreates();
  await beginShutdown(service);
  expect(await end(service, "SIGINT")).toBe("SIGKILL");
});

it("lets calls finish when the terminal of the service closes", needs("Python"), async () => {
  const folder = temporaryFolder();
  const program = "import pty, sys; pty.spawn(sys.argv[1:])";
  const args = ["-c", program, process.execPath, inject("bin")];
  const env = { ...patient, PATH: process.env.PATH, ...anyPort };
  const { child: terminal, output } = runGroup("python3", args, { cwd: folder, env });
  await waitFor(async () => output().includes("serving"));
  const port = Number(/http:\/\/[^ ]*?:(\d+)/.exec(output())?.[1]);
  const create = openCall(rawConnection(port), paths.create);
  await untilInFlight({ port }, 1);
  terminal.kill("SIGKILL");
  await waitFor(async () => !(await accepts(port)));
  expect((await replyOf(create.end(createBody()))).status).toBe(0);
  const pid = /\((\d+)\)/.exec(output())?.[1];
  await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
});
