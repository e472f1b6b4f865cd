import { once } from "node:events";
import { connect as connectHttp2 } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "./support/http2-frames.ts";
import { frame, openCall, rawCall, rawConnection, replyOf } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import {
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
  waitFor,
} from "./support/service.ts";
import { http1, openWire } from "./support/tcp.ts";

const list = "/investor.v1.InvestorService/ListInvestors";
const watch = "/grpc.health.v1.Health/Watch";
const reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const check = "/grpc.health.v1.Health/Check";

const empty = frame(Buffer.alloc(0));
const alive = http1("GET", "/healthz", {});
const listServices = frame(Buffer.from([0x3a, 0]));

/** Has the timers and the clock of a service run ten times as fast. */
const hurry = [
  "--import=data:text/javascript,",
  "const{setTimeout:start}=globalThis;",
  "globalThis.setTimeout=(work,ms,...args)=>start(work,ms/10,...args);",
  "performance.now=((now)=>()=>10*now())(performance.now.bind(performance))",
].join("");

/** A session of HTTP/2 whose client reads nothing that windows count. */
function unreadSession(port: number) {
  const settings = { initialWindowSize: 0 };
  const session = connectHttp2(`http://127.0.0.1:${port}`, { settings }).on("error", () => {});
  onTestFinished(() => session.destroy());
  return session;
}

/** Stores 130 of the largest records, of which a page is a mebibyte. */
async function fill(service: Service): Promise<void> {
  const client = grpcClient(service);
  const text = "\u{1F600}".repeat(256);
  const long = { firstName: text, middleName: text, lastName: text, city: text, state: text };
  const record = aCreate({ ...long, addressLine1: text, addressLine2: text, zipCode: text });
  for (let i = 0; i < 13; i += 1) {
    await Promise.all(Array.from({ length: 10 }, () => client.createInvestor(record)));
  }
}

const inFlight = (service: Service) =>
  metric(service, "investor_records_rpc_server_calls_in_flight");

async function reasonOf(port: number, path: string, body = empty): Promise<string | undefined> {
  return (await rawCall(rawConnection(port), path, body)).reason;
}

describe("watches", () => {
  it("are eight on a connection and 1,024 in all", async () => {
    const service = await startService();
    const sessions = Array.from({ length: 128 }, () => rawConnection(service.grpcPort));
    for (const session of sessions) {
      const streams = Array.from({ length: 8 }, () => openCall(session, watch).end(empty));
      await Promise.all(streams.map((stream) => once(stream, "data")));
      if (session !== sessions[0]) continue;
      expect((await rawCall(session, watch, empty)).reason).toBe("OVERLOADED");
    }
    expect(await reasonOf(service.grpcPort, watch)).toBe("OVERLOADED");
    expect((await rawCall(rawConnection(service.grpcPort), check, empty)).status).toBe(0);
    sessions[0]?.destroy();
    const freed = openCall(rawConnection(service.grpcPort), watch).end(empty);
    await once(freed, "data");
  });
});

describe("public unary calls", () => {
  it("are 64 on a connection and 512 in all, and others are served", async () => {
    const service = await startService();
    const sessions = Array.from({ length: 8 }, () => rawConnection(service.grpcPort));
    for (const session of sessions) {
      for (let i = 0; i < 64; i += 1) openCall(session, check);
      if (session !== sessions[0]) continue;
      expect((await rawCall(session, check, empty)).reason).toBe("OVERLOADED");
    }
    await waitFor(async () => (await reasonOf(service.grpcPort, check)) === "OVERLOADED");
    expect((await rawCall(rawConnection(service.grpcPort), list, empty)).status).toBe(0);
  });

  it("take messages of at most 4 KiB", async () => {
    const { grpcPort } = await startService();
    expect(await reasonOf(grpcPort, check, frame(Buffer.alloc(5_000)))).toBe("MESSAGE_TOO_LARGE");
  });
});

describe("reflection streams", () => {
  it("are eight on a connection and 64 in all", async () => {
    const service = await startService();
    for (let i = 0; i < 8; i += 1) {
      const session = rawConnection(service.grpcPort);
      const streams = Array.from({ length: 8 }, () => openCall(session, reflect));
      for (const stream of streams) stream.write(listServices);
      await Promise.all(streams.map((stream) => once(stream, "data")));
      if (i > 0) continue;
      expect((await rawCall(session, reflect, empty)).reason).toBe("OVERLOADED");
    }
    expect(await reasonOf(service.grpcPort, reflect)).toBe("OVERLOADED");
  });

  it("end at their client's deadline, with the service's reason", async () => {
    const { grpcPort } = await startService();
    const stream = openCall(rawConnection(grpcPort), reflect, { "grpc-timeout": "100m" });
    stream.write(listServices);
    expect((await replyOf(stream)).reason).toBe("DEADLINE_EXCEEDED");
  });
});

describe("lists", () => {
  it("are 64 on their way, and more are refused until one is read or cancelled", async () => {
    const service = await startService();
    await fill(service);
    const session = unreadSession(service.grpcPort);
    const streams = Array.from({ length: 64 }, () => openCall(session, list).end(empty));
    await waitFor(async () => (await inFlight(service)) === 64);
    expect(await reasonOf(service.grpcPort, list)).toBe("OVERLOADED");
    streams[0]?.close();
    await waitFor(async () => (await reasonOf(service.grpcPort, list)) === undefined);
  });

  it("are eight whole ones on their way, and pages beside them", async () => {
    const service = await startService();
    // More than the system takes on behalf of clients that do not read.
    for (let i = 0; i < 12; i += 1) await fill(service);
    const sockets = Array.from({ length: 8 }, () => openWire(service.httpPort).socket);
    for (const socket of sockets) socket.pause().write(http1("GET", "/v1/investors", {}));
    await waitFor(async () => (await inFlight(service)) === 8);
    const url = `http://127.0.0.1:${service.httpPort}/v1/investors`;
    await waitFor(async () => {
      const { status, body } = await fetch(url);
      await body?.cancel();
      return status === 503;
    });
    expect((await fetch(`${url}?pageSize=1`)).status).toBe(200);
  });

  it("that are cancelled unread leave their connection of use", async () => {
    const service = await startService();
    await fill(service);
    const session = unreadSession(service.grpcPort);
    for (let i = 0; i < 50; i += 1) {
      const stream = openCall(session, list).end(empty);
      await once(stream, "response");
      stream.close();
    }
    session.settings({ initialWindowSize: 2 ** 20 });
    expect((await rawCall(session, check, empty)).status).toBe(0);
  });
});

describe("a reply that is not read", () => {
  it("closes its connection after half a minute, and frees its slot", async () => {
    const service = await startService({ NODE_OPTIONS: hurry });
    await fill(service);
    const session = unreadSession(service.grpcPort);
    const closed = once(session, "close");
    openCall(session, list).end(empty);
    await waitFor(async () => (await inFlight(service)) === 1);
    await delay(2_500);
    expect(await inFlight(service)).toBe(1);
    await closed;
    await waitFor(async () => (await inFlight(service)) === 0);
  });
});

describe("connections", () => {
  it("are at most as many as the limit, and the one idle longest is replaced", async () => {
    const service = await startService({ MAX_CONNECTIONS: "20" });
    const first = openWire(service.httpPort).socket;
    await once(first, "connect");
    const sockets = Array.from({ length: 100 }, () => openWire(service.grpcPort).socket);
    await Promise.all(sockets.map((socket) => once(socket, "connect").catch(() => {})));
    const open = () => [first, ...sockets].filter(({ closed }) => !closed).length;
    await expect.poll(open).toBe(20);
    expect(first.closed).toBe(true);
  });

  it("that carry calls are not replaced, and one more is refused", async () => {
    const service = await startService({ MAX_CONNECTIONS: "10" });
    const sessions = Array.from({ length: 10 }, () => rawConnection(service.grpcPort));
    const streams = sessions.map((session) => openCall(session, watch).end(empty));
    await Promise.all(streams.map((stream) => once(stream, "data")));
    await openWire(service.grpcPort).closed;
    expect(streams.every(({ closed }) => !closed)).toBe(true);
  });

  it("that do not begin are closed after ten seconds, on both ports", async () => {
    const service = await startService();
    const wires = [service.grpcPort, service.httpPort].flatMap((port) =>
      ["", "PRI * HT"].map((beginning) => openWire(port, beginning)),
    );
    await Promise.all(wires.map(({ closed }) => closed));
  });
});

describe("a connection of HTTP/2", () => {
  it("carries 128 streams", async () => {
    const service = await startService();
    const session = rawConnection(service.grpcPort);
    await once(session, "remoteSettings");
    expect(session.remoteSettings.maxConcurrentStreams).toBe(128);
  });

  it("is closed if its client opens and resets more than 256 streams at once", async () => {
    const { grpcPort } = await startService();
    const path = "/investor.v1.InvestorService/GetInvestor";
    const request = { ":method": "POST", ":scheme": "http", ":authority": "x", ":path": path };
    const call = headerBlock({ ...request, "content-type": "application/grpc" });
    const resetCalls = (count: number) => {
      const frames = Array.from({ length: count }, (_, i) => [
        http2Frame(frameType.headers, frameFlag.endHeaders, 2 * i + 1, call),
        http2Frame(frameType.resetStream, frameFlag.none, 2 * i + 1, Buffer.from([0, 0, 0, 8])),
      ]);
      return openWire(grpcPort, Buffer.concat([clientPreface, ...frames.flat()]));
    };
    const kept = resetCalls(200);
    await resetCalls(500).closed;
    expect(kept.socket.closed).toBe(false);
  });
});

describe("requests by HTTP/1.1", () => {
  it("have headers of at most 16 KiB", async () => {
    const { httpPort } = await startService();
    const headers = { "x-large": "x".repeat(17_000) };
    expect((await fetch(`http://127.0.0.1:${httpPort}/healthz`, { headers })).status).toBe(431);
  });

  it("may be 16 unanswered on a connection, which one more closes", async () => {
    const service = await startService();
    onTestFinished(lockDatabase(service));
    const json = { "content-type": "application/json" };
    const waiting = http1("POST", "/v1/investors", json, JSON.stringify(institution));
    const kept = openWire(service.httpPort, waiting + alive.repeat(15));
    await openWire(service.httpPort, waiting + alive.repeat(16)).closed;
    expect(kept.socket.closed).toBe(false);
  });
});

describe("a service without a free slot", () => {
  it("refuses calls, and serves probes, metrics, the reference, health and reflection", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "1" });
    const client = grpcClient(service);
    const release = lockDatabase(service);
    const held = client.createInvestor(aCreate());
    await waitFor(async () => (await inFlight(service)) === 1);
    expect(await reasonOf(service.grpcPort, list)).toBe("OVERLOADED");
    const url = (path: string) => `http://127.0.0.1:${service.httpPort}${path}`;
    const refused = await fetch(url("/v1/investors"));
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
    for (const path of ["/healthz", "/readyz", "/metrics", "/", "/openapi.json"]) {
      expect((await fetch(url(path))).status, path).toBe(200);
    }
    const session = rawConnection(service.grpcPort);
    expect((await rawCall(session, check, empty)).status).toBe(0);
    expect((await rawCall(session, reflect, listServices)).status).toBe(0);
    release();
    await held;
  });
});

describe("an old connection", () => {
  it("of HTTP/2 is asked to end, and carries its calls to their ends", async () => {
    const service = await startService({ MAX_CONNECTION_AGE: "1s" });
    const session = rawConnection(service.grpcPort);
    const stream = openCall(session, list);
    await once(session, "goaway");
    await delay(500);
    expect((await replyOf(stream.end(empty))).status).toBe(0);
    if (!session.closed) await once(session, "close");
  });

  it("of HTTP/1.1 ends with its next reply", async () => {
    const service = await startService({ MAX_CONNECTION_AGE: "1s" });
    const { socket, received, closed } = openWire(service.httpPort, alive);
    await expect.poll(received).toContain("alive");
    await delay(1_500);
    expect(socket.closed).toBe(false);
    socket.write(alive);
    expect(await closed).toMatch(/alive[\s\S]*connection: close[\s\S]*alive/i);
  });
});
