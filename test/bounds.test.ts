import { once } from "node:events";
import { constants } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, inject, it, onTestFinished } from "vitest";
import { limits } from "../src/limits.ts";
import { makeFullFolder } from "./support/copying.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import {
  clientPreface,
  fieldsOf,
  frameType,
  http2Frame,
  openStream,
} from "./support/http2-frames.ts";
import { startIssuer } from "./support/issuer.ts";
import {
  frame,
  messages,
  openCall,
  paths,
  rawCall,
  rawConnection,
  replyOf,
  untilArrived,
} from "./support/raw-grpc.ts";
import { institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import {
  anyPort,
  ask,
  createBody,
  hurry,
  lockDatabase,
  metric,
  readMetrics,
  runGroup,
  startService,
  untilInFlight,
  untilWritten,
  waitFor,
} from "./support/service.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";

const { create, get, list, check, reflect } = paths;
const { empty, listServices } = messages;
const alive = http1("GET", "/healthz", {});
const json = { "content-type": "application/json" };
const isWeb = { "content-type": "application/grpc-web" };

const greedy = "Bearer t0ken-of-a-greedy-caller";
const modest = "Bearer t0ken-of-a-modest-caller";

/** No bound, so that a busy machine may take its time. */
const patient = { "--request-timeout": "10m" };

/** The same, for a process that is so many times as fast as it says. */
const patientAndFast = (times: number) => ({ REQUEST_TIMEOUT: "10m", NODE_OPTIONS: hurry(times) });

/** The flags of a service that has this many of the largest records, and time for its calls. */
async function withRecords(count: number) {
  const folder = await makeFullFolder(count);
  return { ...patient, "--database-url": `sqlite:${folder}/data/investors.db` };
}

/** Starts such a service with two callers. */
async function startWithCallers(records: number) {
  const tokens = "greedy t0ken-of-a-greedy-caller\nmodest t0ken-of-a-modest-caller\n";
  const flags = { ...(await withRecords(records)), "--auth-tokens-file": temporaryFile(tokens) };
  return { ...(await startInProcess(flags)), authorization: modest };
}

/** A session of HTTP/2 whose client reads nothing that windows count. */
const unreadSession = (port: number) => rawConnection(port, { initialWindowSize: 0 });

/** How many connections a service has closed for a reason. */
const closedFor = (service: Parameters<typeof metric>[0], reason: string) =>
  metric(service, "investor_records_connections_closed_total", `{reason="${reason}"}`);

/** How many gets a service has replied to, or given up. */
async function countGets(service: { port: number }): Promise<number> {
  const text = await readMetrics(service);
  const counts = text.matchAll(
    /call_duration_seconds_count{method="[\w.]+\/GetInvestor".*} (\d+)/g,
  );
  return Array.from(counts, ([, count]) => Number(count)).reduce((sum, count) => sum + count, 0);
}

async function reasonOf(port: number, path: string, body = empty): Promise<string | undefined> {
  return (await rawCall(rawConnection(port), path, body)).reason;
}

it("calls in flight are as many as the limit, beside probes, metrics, the reference and public calls", async () => {
  const service = await startInProcess({ ...patient, "--max-in-flight": "1" });
  const held = openCall(rawConnection(service.port), create);
  await untilInFlight(service, 1);
  expect(await reasonOf(service.port, list)).toBe("OVERLOADED");
  const refused = await ask(service, "/v1/investors");
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
  for (const path of ["/healthz", "/readyz", "/metrics", "/", "/openapi.json"]) {
    expect((await ask(service, path)).status, path).toBe(200);
  }
  const session = rawConnection(service.port);
  expect((await rawCall(session, check, empty)).status).toBe(0);
  expect((await rawCall(session, reflect, listServices)).status).toBe(0);
  expect((await replyOf(held.end(createBody()))).status).toBe(0);
});

describe("public calls", () => {
  it("of reflection are 64 in all, and keep out nothing but another one", async () => {
    const { port } = await startInProcess(patient);
    const session = rawConnection(port);
    const streams = Array.from({ length: 64 }, () => openCall(session, reflect));
    for (const stream of streams) stream.write(listServices);
    await untilArrived(session);
    expect(await reasonOf(port, reflect, listServices)).toBe("OVERLOADED");
    for (const path of [check, list]) expect(await reasonOf(port, path)).toBe(undefined);
    streams[0]?.close();
    await waitFor(async () => (await reasonOf(port, reflect, listServices)) === undefined);
  });

  it("take messages of at most 4 KiB", async () => {
    const { port } = await startInProcess();
    expect(await reasonOf(port, check, frame(Buffer.alloc(5_000)))).toBe("MESSAGE_TOO_LARGE");
  });

  it.each([
    ["its client's", patient, { "grpc-timeout": "100m" }],
    ["the service's", { "--request-timeout": "100ms" }, {}],
  ])("of reflection end at %s timeout", async (_, flags, headers) => {
    const { port } = await startInProcess(flags);
    const stream = openCall(rawConnection(port), reflect, headers);
    stream.write(listServices);
    expect((await replyOf(stream)).reason).toBe("DEADLINE_EXCEEDED");
  });
});

it("metrics are sent to 16 at once, beside the document and probes", async () => {
  const session = unreadSession((await startInProcess()).port);
  const open = async (path: string) => {
    const stream = session.request({ ":path": path });
    const [{ ":status": status }] = await once(stream, "response");
    return { status, close: () => stream.close() };
  };
  const first = await open("/metrics");
  expect(first.status).toBe(200);
  for (let i = 1; i < 16; i += 1) expect((await open("/metrics")).status).toBe(200);
  expect((await open("/metrics")).status).toBe(503);
  for (const path of ["/openapi.json", "/healthz", "/readyz"]) {
    expect((await open(path)).status, path).toBe(200);
  }
  first.close();
  await waitFor(async () => (await open("/metrics")).status === 200);
});

describe("what is of no call", () => {
  it("closes its connection after half a minute if it is not read", async () => {
    const service = await startService(patientAndFast(10));
    const paths = ["/nothing", "/healthz", "/metrics"];
    const closing = paths.map(async (path) => {
      const session = unreadSession(service.port);
      session.request({ ":path": path }).on("error", () => {});
      await once(session, "close");
    });
    await Promise.all(closing);
    await expect.poll(() => closedFor(service, "unread_reply")).toBe(paths.length);
  });

  it("closes its connection, too, if it is a preflight that is not read", async () => {
    // Before the database gives up.
    const service = await startService({ ...patientAndFast(50), CORS_ORIGIN: "*" });
    lockDatabase(service);
    const preflight = { origin: "https://example.com", "access-control-request-method": "POST" };
    // Replies come in the order of their requests, and this one waits for the database.
    const waiting = http1("POST", "/v1/investors", json, JSON.stringify(institution));
    const { closed } = openWire(service.port, waiting + http1("OPTIONS", list, preflight));
    expect(await closed).not.toContain("HTTP/1.1 204");
  });
});

describe("lists", () => {
  it("that fail and are not read hold up no other list", async () => {
    const service = await startInProcess(patient);
    const session = unreadSession(service.port);
    const negative = frame(Buffer.from([8, ...Array(9).fill(0xff), 1]));
    for (let i = 0; i < 8; i += 1) {
      const stream = openCall(session, list, isWeb).end(negative);
      await once(stream, "response");
    }
    expect((await rawCall(rawConnection(service.port), list, empty)).status).toBe(0);
  });

  it("are 64 on their way, 56 of one caller, and more are refused until one is cancelled", async () => {
    const service = await startWithCallers(130);
    const session = unreadSession(service.port);
    const open = (count: number, authorization: string) =>
      Array.from({ length: count }, () => openCall(session, list, { authorization }).end(empty));
    const callBy = (authorization: string) =>
      rawCall(rawConnection(service.port), list, empty, { authorization });
    const [first] = open(56, greedy);
    await untilInFlight(service, 56);
    expect((await callBy(greedy)).reason).toBe("OVERLOADED");
    open(8, modest);
    await untilInFlight(service, 64);
    expect((await callBy(modest)).reason).toBe("OVERLOADED");
    await untilInFlight(service, 64);
    first?.close();
    await waitFor(async () => (await callBy(modest)).status === 0);
  });

  it("are eight whole ones on their way, six of one caller, and pages beside them", async () => {
    // More than the system takes on behalf of clients that do not read.
    const { port } = await startWithCallers(1_000);
    const statusOf = async (authorization: string, path = "/v1/investors") => {
      const { socket } = openWire(port, http1("GET", path, { authorization }));
      const [start] = await once(socket, "data");
      socket.pause();
      return Number(start.slice(9, 12));
    };
    for (let i = 0; i < 6; i += 1) expect(await statusOf(greedy)).toBe(200);
    expect(await statusOf(greedy)).toBe(503);
    for (let i = 0; i < 2; i += 1) expect(await statusOf(modest)).toBe(200);
    expect(await statusOf(modest)).toBe(503);
    expect(await statusOf(greedy, "/v1/investors?pageSize=1")).toBe(200);
  });

  it("that are whole are cut off after an hour", async () => {
    // The clock alone, so that an hour is a second.
    const clock = { REQUEST_TIMEOUT: "500h", NODE_OPTIONS: hurry(3_600, []) };
    const service = await startService(clock, await makeFullFolder(1_000));
    const { socket, closed } = openWire(service.port, http1("GET", "/v1/investors", {}));
    await once(socket, "data");
    socket.pause();
    await delay(1_500);
    socket.resume();
    expect(await closed).not.toContain("}]");
    await untilWritten(service, "DEADLINE_EXCEEDED");
  });

  it("that are cancelled unread leave their connection of use", async () => {
    const service = await startInProcess(await withRecords(130));
    const session = unreadSession(service.port);
    for (let i = 0; i < 50; i += 1) {
      const stream = openCall(session, list).end(empty);
      await once(stream, "response");
      stream.close();
    }
    session.settings({ initialWindowSize: 2 ** 20 });
    expect((await rawCall(session, check, empty)).status).toBe(0);
  });
});

it("a reply that is not read closes its connection after two minutes, as the service's fault, whatever else is read there", async () => {
  const service = await startService(patientAndFast(10), await makeFullFolder(130));
  const session = unreadSession(service.port);
  const closed = once(session, "close");
  const start = performance.now();
  for (let i = 0; i < 60; i += 1) openCall(session, list).end(empty);
  await untilInFlight(service, 60);
  // Windows do not hold up the errors that these get.
  while (!session.closed) await rawCall(session, get, empty).catch(() => {});
  await closed;
  expect(performance.now() - start).toBeGreaterThan(11_000);
  await untilInFlight(service, 0);
  const labels = `{method="${list.slice(1)}",code="DEADLINE_EXCEEDED",transport="grpc"}`;
  const name = "investor_records_rpc_server_call_duration_seconds_count";
  expect(await metric(service, name, labels)).toBeGreaterThan(0);
});

describe("connections", () => {
  it("are no more than the limit, and make room in the order of their last calls", async () => {
    const { port } = await startInProcess({ "--max-connections": "3" });
    const call = http1("GET", "/v1/investors", {});
    const open = async () => {
      const wire = openWire(port, call);
      await expect.poll(wire.received).toContain("200 OK");
      return wire;
    };
    const [first, second, third] = [await open(), await open(), await open()];
    first.socket.write(call);
    await expect.poll(() => statusesIn(first.received())).toEqual([200, 200]);
    const left = [second, third, first];
    for (const next of left.slice()) {
      await open();
      await next.closed;
      left.shift();
      for (const { socket } of left) expect(socket.closed).toBe(false);
    }
    const sockets = Array.from({ length: 100 }, () => openWire(port).socket);
    await Promise.all(sockets.map((socket) => once(socket, "connect").catch(() => {})));
    await expect.poll(() => sockets.filter(({ closed }) => !closed)).toHaveLength(3);
  });

  it("are no more than file descriptors allow: less is refused at the start, and an idle one makes room", async () => {
    const start = (connections: number) => {
      const env = { ...process.env, ...anyPort, MAX_CONNECTIONS: String(connections) };
      const command = 'ulimit -n 80; exec "$0" "$1"';
      const args = ["-c", command, process.execPath, inject("bin")];
      return runGroup("sh", args, { env, cwd: temporaryFolder() });
    };
    const refused = start(31);
    expect(await refused.exited).toBe(2);
    expect(refused.output()).toMatch(
      /MAX_CONNECTIONS 31 needs 81 file descriptors, of a limit of 80: raise it \(ulimit -n, /,
    );
    const { output } = start(30);
    await expect.poll(output).toContain("serving");
    const port = Number(/http:\/\/127.0.0.1:(\d+)/.exec(output())?.[1]);
    for (let i = 0; i < 100; i += 1) {
      const { received } = openWire(port, alive);
      await expect.poll(received).toContain("200 OK");
    }
  });

  it("make room after a GOAWAY, unless they carry an admitted call: then one more is refused", async () => {
    const service = await startInProcess({ ...patient, "--max-connections": "3" });
    const stranger = rawConnection(service.port);
    expect((await rawCall(stranger, check, empty)).status).toBe(0);
    openCall(stranger, check);
    openCall(stranger, reflect).write(listServices);
    await untilArrived(stranger);
    const goaway = once(stranger, "goaway");
    const sessions = Array.from({ length: 3 }, () => rawConnection(service.port));
    const calls = sessions.map((session) => openCall(session, create));
    for (const session of sessions) await untilArrived(session);
    await goaway;
    await openWire(service.port).closed;
    const said = expect.objectContaining({ reason: "refused" });
    await expect.poll(() => service.lines).toContainEqual(said);
    for (const call of calls) expect((await replyOf(call.end(createBody()))).status).toBe(0);
    expect(await closedFor(service, "refused")).toBe(1);
    expect(await closedFor(service, "idle_replaced")).toBeGreaterThan(0);
  });
});

describe("a connection of HTTP/2", () => {
  it("ends when it has been idle for five minutes, and not during a call that takes longer", async () => {
    const own = limits as { idleMs: number };
    const { idleMs } = own;
    onTestFinished(() => {
      own.idleMs = idleMs;
    });
    own.idleMs = 300;
    const service = await startInProcess(patient);
    const session = rawConnection(service.port);
    const closed = once(session, "close");
    const call = openCall(session, create);
    await untilInFlight(service, 1);
    await delay(1_000);
    expect((await replyOf(call.end(createBody()))).status).toBe(0);
    await closed;
  });

  /** Calls that are reset at once. */
  const resetCalls = (count: number, first = 1) =>
    Buffer.concat(
      Array.from({ length: count }, (_, i) => [
        openStream(first + 2 * i, fieldsOf(get)),
        http2Frame(frameType.resetStream, 0, first + 2 * i, Buffer.from([0, 0, 0, 8])),
      ]).flat(),
    );

  it("serves 32 of the streams that its client opens and resets at once", async () => {
    const service = await startService();
    const kept = openWire(service.port, clientPreface);
    // Of what comes with the first bytes, Node.js reads all before it tells of any.
    await expect.poll(kept.received).not.toBe("");
    kept.socket.write(resetCalls(230));
    await expect.poll(() => countGets(service)).toBe(32);
    expect(kept.socket.closed).toBe(false);
  });

  it("is closed for its new streams once there are more than 2,048 in a turn, which is said", async () => {
    const service = await startService();
    const wires = Array.from({ length: 4 }, () => openWire(service.port, clientPreface));
    for (const { received } of wires) await expect.poll(received).not.toBe("");
    // All of them come in one turn.
    service.child.kill("SIGSTOP");
    for (const { socket } of wires) socket.write(resetCalls(900));
    await delay(200);
    service.child.kill("SIGCONT");
    await Promise.race(wires.map(({ closed }) => closed));
    await expect.poll(service.output).toContain('"reason":"too_many_streams"');
  });

  it("goes on through 1,000 resets a second, and other calls on it", async () => {
    const { port } = await startService({ REQUEST_TIMEOUT: "10m" });
    const session = rawConnection(port);
    const goaway = once(session, "goaway").then(() => "goaway");
    const held = openCall(session, create);
    for (let i = 0; i < 3_000; i += 1) {
      const stream = openCall(session, get);
      stream.close(constants.NGHTTP2_CANCEL);
      if (i % 50 === 49) await delay(50);
    }
    expect((await replyOf(held.end(createBody()))).status).toBe(0);
    expect(await Promise.race([goaway, delay(0, "open")])).toBe("open");
  });

  it("is closed after more than 2,000 resets at once, which is said", async () => {
    const service = await startService();
    const { socket, received } = openWire(service.port, clientPreface);
    const ping = http2Frame(frameType.ping, 0, 0, Buffer.alloc(8));
    const reply = http2Frame(frameType.ping, 1, 0, Buffer.alloc(8)).toString("latin1");
    const replies = () => received().split(reply).length - 1;
    const start = performance.now();
    for (let i = 0; !socket.closed; i += 1) {
      socket.write(Buffer.concat([resetCalls(100, 200 * i + 1), ping]));
      await waitFor(() => socket.closed || replies() > i);
    }
    expect(replies(), "batches of 100").toBeGreaterThanOrEqual(19);
    // The batch that goes over is answered, too, and each second that begins gives 1,500 back.
    const allowed = 2_000 + 100 + 1_500 * Math.ceil((performance.now() - start) / 1_000);
    expect(100 * replies(), "resets").toBeLessThanOrEqual(allowed);
    const closed = await closedFor(service, "http2_error");
    expect(closed + (await closedFor(service, "http2_idle_error"))).toBe(1);
  });

  it("carries 100 streams, and headers of 16 KiB", async () => {
    const session = rawConnection((await startInProcess()).port);
    await once(session, "remoteSettings");
    expect(session.remoteSettings.maxConcurrentStreams).toBe(100);
    expect(session.remoteSettings.maxHeaderListSize).toBe(16_384);
  });
});

it("requests of strangers are 2,048 open, and a hundred first calls are served beside them", async () => {
  const issuer = await startIssuer();
  const authorization = `Bearer ${await issuer.sign({ scope: "investors:read" })}`;
  const oidc = { "--oidc-issuer": issuer.url, "--oidc-audience": "investors" };
  const service = { ...(await startInProcess({ ...patient, ...oidc })), authorization };
  const { port, lines } = service;
  /** Opens creates without credentials that get none of their refusals, 100 on each connection. */
  const leaveUnread = async (connections: number) => {
    const sessions = Array.from({ length: connections }, () => unreadSession(port));
    for (const session of sessions) {
      for (let i = 0; i < 100; i += 1) openCall(session, create, isWeb);
      await untilArrived(session);
    }
    return sessions.map((session) => once(session, "goaway"));
  };
  const callAll = () => {
    const session = rawConnection(port);
    const call = () => rawCall(session, get, empty, { authorization });
    return Promise.all(Array.from({ length: 100 }, call));
  };
  const served = Array(100).fill({ status: 3, reason: "INVALID_FIELDS" });
  const [oldest] = await leaveUnread(19);
  expect(await callAll()).toEqual(served);
  expect(await closedFor(service, "unadmitted_requests")).toBe(0);
  // Those who have been there for a second make room.
  await delay(1_100);
  await leaveUnread(2);
  expect(await callAll()).toEqual(served);
  const [code] = (await oldest) ?? [];
  expect(code).toBe(constants.NGHTTP2_ENHANCE_YOUR_CALM);
  expect(await closedFor(service, "unadmitted_requests")).toBeGreaterThan(0);
  expect(lines.map(({ reason }) => reason)).toContain("unadmitted_requests");
});

it("requests by HTTP/1.1 may be 16 unanswered on a connection, which one more closes", async () => {
  const service = await startInProcess();
  lockDatabase(service);
  const waiting = http1("POST", "/v1/investors", json, JSON.stringify(institution));
  const kept = openWire(service.port, waiting + alive.repeat(15));
  await openWire(service.port, waiting + alive.repeat(16)).closed;
  expect(kept.socket.closed).toBe(false);
});

describe("an old connection", () => {
  it("of HTTP/2 is asked to end, and carries its calls to their ends", async () => {
    const service = await startInProcess({ "--max-connection-age": "1s" });
    const session = rawConnection(service.port);
    const stream = openCall(session, list);
    await once(session, "goaway");
    await untilArrived(session);
    expect((await replyOf(stream.end(empty))).status).toBe(0);
    if (!session.closed) await once(session, "close");
  });

  it("of HTTP/1.1 ends with its next reply", async () => {
    const service = await startInProcess({ ...patient, "--max-connection-age": "1s" });
    const { socket, received, closed } = openWire(service.port, alive);
    await expect.poll(received).toContain("alive");
    // One after the other grows as old, give or take a tenth.
    for (let i = 0; i < 2; i += 1) await once(rawConnection(service.port), "goaway");
    expect(socket.closed).toBe(false);
    socket.write(alive);
    expect(await closed).toMatch(/alive[\s\S]*connection: close[\s\S]*alive/i);
  });
});
