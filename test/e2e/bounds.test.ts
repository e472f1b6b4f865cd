import { once } from "node:events";
import { connect as connectHttp2 } from "node:http2";
import { connect, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { createReflection } from "../../src/operations/reflection.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { startEngine } from "../support/engine.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { openGate } from "../support/gate.ts";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import { memoryMb } from "../support/memory.ts";
import { frame, openCall, rawCall, rawConnection, replyOf } from "../support/raw-grpc.ts";
import { aCreate, institution } from "../support/records.ts";
import {
  grpcClient,
  lockDatabase,
  metric,
  type Service,
  startService,
  waitFor,
} from "../support/service.ts";

const list = "/investor.v1.InvestorService/ListInvestors";
const watch = "/grpc.health.v1.Health/Watch";
const reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const check = "/grpc.health.v1.Health/Check";
const permissionDenied = 7;
const unavailable = 14;

const empty = frame(Buffer.alloc(0));
const thousand = frame(Buffer.from([8, 0xe8, 7]));
const six = frame(Buffer.from('{"pageSize":6}'));

/** A socket of the test's own, on which errors are expected. */
function openTcp(port: number): Socket {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  return socket;
}

/** A session of HTTP/2 whose client reads nothing that windows count until it is told to. */
function unreadSession(port: number) {
  const settings = { initialWindowSize: 0 };
  const session = connectHttp2(`http://127.0.0.1:${port}`, { settings }).on("error", () => {});
  onTestFinished(() => session.destroy());
  return session;
}

/** Stores so much that a page takes a mebibyte. */
async function fill(service: Service): Promise<void> {
  const client = grpcClient(service);
  const text = "\u{1F600}".repeat(256);
  const long = { firstName: text, middleName: text, lastName: text, city: text, state: text };
  const record = aCreate({ ...long, addressLine1: text, addressLine2: text, zipCode: text });
  for (let i = 0; i < 13; i += 1) {
    await Promise.all(Array.from({ length: 10 }, () => client.createInvestor(record)));
  }
}

const reads = (service: Service) =>
  metric(service, "store_operation_duration_seconds_count", '{operation="list"}');

/** Whether a stream gets a message before it ends. */
function isServed(stream: ReturnType<typeof openCall>): Promise<boolean> {
  const message = once(stream, "data").then(() => true);
  return Promise.race([message, replyOf(stream).then(() => false)]);
}

describe("watches", () => {
  it("are eight on a connection, and more are refused", async () => {
    const service = await startService();
    const session = rawConnection(service.grpcPort);
    const streams = Array.from({ length: 8 }, () => openCall(session, watch).end(empty));
    await Promise.all(streams.map((stream) => once(stream, "data")));
    const { status, reason } = await rawCall(session, watch, empty);
    expect({ status, reason }).toEqual({ status: unavailable, reason: "OVERLOADED" });
    for (const [type, refusal] of [
      ["application/connect+json", '"code":"unavailable"'],
      ["application/grpc-web+json", "grpc-status: 14"],
    ]) {
      const { body } = await rawCall(session, watch, frame(Buffer.from("{}")), {
        "content-type": type,
      });
      expect(body.toString(), type).toContain(refusal);
    }
    streams[0]?.close();
    await waitFor(() => isServed(openCall(session, watch).end(empty)));
    expect(streams.filter(({ closed }) => !closed)).toHaveLength(7);
  });

  it("are 1,024 in all, and more are refused", async () => {
    const service = await startService();
    const sessions = Array.from({ length: 128 }, () => rawConnection(service.grpcPort));
    for (const session of sessions) {
      const streams = Array.from({ length: 8 }, () => openCall(session, watch).end(empty));
      await Promise.all(streams.map((stream) => once(stream, "data")));
    }
    const last = rawConnection(service.grpcPort);
    const { status, reason } = await rawCall(last, watch, empty);
    expect({ status, reason }).toEqual({ status: unavailable, reason: "OVERLOADED" });
    expect((await rawCall(last, check, empty)).status).toBe(0);
    sessions[0]?.destroy();
    await waitFor(() => isServed(openCall(rawConnection(service.grpcPort), watch).end(empty)));
  });
});

describe("calls that anybody may make", () => {
  it("are 64 on a connection, and however many there are, others are served", async () => {
    const service = await startService();
    const sessions = Array.from({ length: 6 }, () => rawConnection(service.grpcPort));
    for (const session of sessions) {
      for (let i = 0; i < 64; i += 1) openCall(session, check);
      const { status, reason } = await rawCall(session, check, empty);
      expect({ status, reason }).toEqual({ status: unavailable, reason: "OVERLOADED" });
    }
    expect((await rawCall(rawConnection(service.grpcPort), check, empty)).status).toBe(0);
  });
});

describe("reflection streams", () => {
  it("are eight on a connection and 256 in all, and more are refused", async () => {
    const service = await startService();
    for (let i = 0; i < 32; i += 1) {
      const session = rawConnection(service.grpcPort);
      const streams = Array.from({ length: 8 }, () => openCall(session, reflect));
      for (const stream of streams) stream.write(frame(Buffer.from([0x3a, 0])));
      await Promise.all(streams.map((stream) => once(stream, "data")));
      if (i > 0) continue;
      const { status, reason } = await rawCall(session, reflect, empty);
      expect({ status, reason }).toEqual({ status: unavailable, reason: "OVERLOADED" });
    }
    const { reason } = await rawCall(rawConnection(service.grpcPort), reflect, empty);
    expect(reason).toBe("OVERLOADED");
  });

  it("end after a minute", async () => {
    const reflection = createReflection([], []);
    const options = { services: [], gate: openGate(1), reflection };
    const { port, destroy } = await startEngine({ ...options, versions: ["h2"] });
    onTestFinished(destroy);
    const session = rawConnection(port);
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    onTestFinished(() => void vi.useRealTimers());
    const stream = openCall(session, reflect);
    stream.write(frame(Buffer.from([0x3a, 0])));
    const answer = replyOf(stream);
    await once(stream, "data");
    vi.advanceTimersByTime(59_000);
    stream.write(frame(Buffer.from([0x3a, 0])));
    await once(stream, "data");
    vi.advanceTimersByTime(1_000);
    vi.useRealTimers();
    expect((await answer).reason).toBe("DEADLINE_EXCEEDED");
  });

  it("end at their deadline, whatever of them was read before", async () => {
    const service = await startService();
    const requests = Array.from({ length: 2_000 }, () => frame(Buffer.from([0x3a, 0])));
    const headers = { "grpc-timeout": "50m" };
    const session = rawConnection(service.grpcPort);
    const one = await rawCall(session, reflect, frame(Buffer.from([0x3a, 0])));
    const { reason, body } = await rawCall(session, reflect, Buffer.concat(requests), headers);
    expect(reason).toBe("DEADLINE_EXCEEDED");
    expect(body.length).toBeLessThan(2_000 * one.body.length);
  });
});

describe("replies that are not read", () => {
  it.each([
    ["that are sent at once", "application/grpc", thousand, 60, 5],
    ["that are sent in parts", "application/grpc+json", six, 120, 90],
  ])(
    "%s are a few mebibytes on a connection, which is served on as they are read",
    async (...of) => {
      const [, type, page, calls, atMost] = of;
      const service = await startService();
      await fill(service);
      const before = await reads(service);
      const session = unreadSession(service.grpcPort);
      const headers = { "content-type": type };
      const streams = Array.from({ length: calls }, () =>
        openCall(session, list, headers).end(page),
      );
      const answers = streams.map(replyOf);
      await expect.poll(() => reads(service)).toBeGreaterThan(before);
      await delay(500);
      expect((await reads(service)) - before).toBeLessThanOrEqual(atMost);
      // Others wait for nothing.
      const other = grpcClient(service);
      expect((await other.listInvestors({ pageSize: 1 })).investors).toHaveLength(1);
      session.settings({ initialWindowSize: 2 ** 24 });
      session.setLocalWindowSize(2 ** 26);
      const statuses = (await Promise.all(answers)).map(({ status }) => status);
      expect(new Set(statuses)).toEqual(new Set([0]));
    },
  );

  it("are 64 MiB in all, and those who have more than their share are refused", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "30s" });
    await fill(service);
    const sessions = Array.from({ length: 27 }, () => unreadSession(service.grpcPort));
    const before = await reads(service);
    for (const session of sessions) {
      for (let i = 0; i < 3; i += 1) openCall(session, list).end(thousand);
    }
    await expect.poll(async () => (await reads(service)) - before).toBe(81);
    // Small replies are not refused for their size, and add up.
    for (const session of sessions) {
      for (let i = 0; i < 30; i += 1) openCall(session, list).end(frame(Buffer.from([8, 1])));
    }
    const [session] = sessions;
    if (session === undefined) throw new Error("there is no session");
    await waitFor(async () => {
      // What is served has a reply that is not read.
      const answer = await Promise.race([rawCall(session, check, empty), delay(300, undefined)]);
      return answer?.reason === "OVERLOADED";
    });
    const other = grpcClient(service);
    expect((await failureOf(other.listInvestors({ pageSize: 1_000 }))).reason).toBe("OVERLOADED");
    const json = frame(Buffer.from('{"pageSize":1000}'));
    const headers = { "content-type": "application/grpc+json" };
    const refused = await rawCall(rawConnection(service.grpcPort), list, json, headers);
    expect(refused).toMatchObject({ status: unavailable, reason: "OVERLOADED" });
    const labels =
      '{method="investor.v1.InvestorService/ListInvestors",code="CANCELLED",transport="grpc"}';
    expect(await metric(service, "rpc_server_call_duration_seconds_count", labels)).toBe(0);
    const { id } = await other.createInvestor(aCreate());
    expect((await other.getInvestor({ id })).id).toBe(id);
    for (const each of sessions) each.destroy();
    await waitFor(() => other.listInvestors({ pageSize: 1_000 }).catch(() => undefined));
  });

  it("release their slots if the clients never read", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "3s", MAX_IN_FLIGHT: "20" });
    await fill(service);
    const inFlight = () => metric(service, "rpc_server_calls_in_flight");
    const session = rawConnection(service.grpcPort);
    for (let i = 0; i < 10; i += 1) openCall(session, list).pause().end(thousand);
    await expect.poll(inFlight).toBe(10);
    const sockets = Array.from({ length: 24 }, () => openTcp(service.httpPort).pause());
    // More and more, until the system takes no more replies on behalf of the clients.
    const ask = async () => {
      for (const socket of sockets) {
        socket.write(
          `POST ${list} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{"pageSize":1000}`,
        );
      }
      // Those that only wait for their turns have gone on by then.
      await delay(500);
      return inFlight();
    };
    await expect.poll(ask, { timeout: 30_000, interval: 100 }).toBe(20);
    const client = grpcClient(service);
    expect((await failureOf(client.listInvestors({}))).reason).toBe("OVERLOADED");
    await expect.poll(inFlight, { timeout: 80_000, interval: 500 }).toBe(0);
    expect((await client.listInvestors({ pageSize: 1 })).investors).toHaveLength(1);
  }, 120_000);

  it("come whole and in order once the client of a long pipeline reads", async () => {
    const service = await startService();
    const socket = openTcp(service.httpPort).pause();
    const get = (path: string, more = "") =>
      `GET ${path} HTTP/1.1\r\nhost: localhost\r\n${more}\r\n`;
    const large = get("/openapi.json").repeat(50);
    const last = get("/healthz", "connection: close\r\n");
    socket.write(large + get("/healthz").repeat(199) + last);
    await delay(1_000);
    let text = "";
    socket.setEncoding("utf8").on("data", (some) => {
      text += some;
    });
    socket.resume();
    await new Promise((resolve) => socket.once("close", resolve));
    const replies = text.match(/"openapi"|"alive"/g) ?? [];
    expect(replies.length).toBe(250);
    expect(replies).toEqual([...Array(50).fill('"openapi"'), ...Array(200).fill('"alive"')]);
    const lines = service.output().trim().split("\n");
    expect(lines.filter((line) => !/^\{"level":[1-4]0,/.test(line))).toEqual([]);
  });

  it.each([
    ["calls that are refused", "/nothing"],
    ["calls of other hosts", "/v1/investors"],
  ])("close the connection if they are more than 64 KiB of %s", async (_, path) => {
    const service = await startService();
    const socket = openTcp(service.httpPort).pause();
    const host = path === "/nothing" ? "localhost" : "evil.example";
    const one = `GET ${path} HTTP/1.1\r\nhost: ${host}\r\n\r\n`;
    const some = one.repeat(1_000);
    await waitFor(async () => {
      // Who reads nothing learns of the end by writing.
      if (socket.writableLength < 1_000_000) socket.write(some);
      return socket.destroyed;
    });
    expect(await metric(service, "rpc_server_calls_in_flight")).toBe(0);
  });

  it("of refused calls close a connection on TLS that has read thousands before", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const service = await startService(await writeServerFiles(folder, authority), folder);
    const session = connectHttp2(`https://localhost:${service.httpPort}`, { ca: authority.ca });
    session.on("error", () => {});
    onTestFinished(() => session.destroy());
    const ask = () => session.request({ ":path": "/nothing" }).on("error", () => {});
    for (let i = 0; i < 40; i += 1) {
      const streams = Array.from({ length: 100 }, () => ask().resume());
      await Promise.all(streams.map((stream) => once(stream, "close")));
    }
    await new Promise<void>((done) => session.settings({ initialWindowSize: 0 }, () => done()));
    for (let i = 0; i < 40; i += 1) ask();
    await waitFor(async () => session.destroyed);
  });
});

describe("requests to services that are open to anybody", () => {
  it("are small", async () => {
    const service = await startService();
    const session = rawConnection(service.grpcPort);
    const { reason } = await rawCall(session, check, frame(Buffer.alloc(5_000)));
    expect(reason).toBe("MESSAGE_TOO_LARGE");
  });
});

describe("connections", () => {
  it("are at most as many as the limit, also if they come all at once", async () => {
    const service = await startService({ MAX_CONNECTIONS: "20" });
    const sockets = Array.from({ length: 200 }, (_, i) =>
      openTcp(i % 2 === 0 ? service.grpcPort : service.httpPort).resume(),
    );
    await Promise.all(sockets.map((socket) => once(socket, "connect").catch(() => {})));
    const open = () => sockets.filter(({ closed }) => !closed).length;
    await expect.poll(open).toBeLessThanOrEqual(20);
    await delay(300);
    expect(open()).toBe(20);
  });

  it("are not kept by calls whose requests do not end", async () => {
    const service = await startService({ MAX_CONNECTIONS: "20" });
    const streams = Array.from({ length: 20 }, () =>
      openCall(rawConnection(service.grpcPort), list).on("error", () => {}),
    );
    for (const stream of streams) stream.write(empty.subarray(0, 1));
    await delay(500);
    for (let i = 0; i < 3; i += 1) {
      expect((await rawCall(rawConnection(service.grpcPort), list, empty)).status).toBe(0);
    }
  });

  it("are not kept by the watches of those who never were admitted", async () => {
    const service = await startService({ MAX_CONNECTIONS: "20" });
    for (let i = 0; i < 20; i += 1) {
      const stream = openCall(rawConnection(service.grpcPort), watch);
      stream.end(empty);
      expect(await isServed(stream)).toBe(true);
    }
    for (let i = 0; i < 3; i += 1) {
      const newcomer = await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors?pageSize=1`);
      expect(newcomer.status).toBe(200);
    }
  });
});

describe("requests by HTTP/1.1", () => {
  const path = "GET /healthz HTTP/1.1\r\n";
  const host = "host: localhost\r\n";

  const one = `${path}${host}\r\n`;

  /** Tells whether the connection on which requests are sent stays. */
  async function isKept(port: number, requests: string, forMs = 1_000): Promise<boolean> {
    const socket = openTcp(port).resume();
    socket.write(requests);
    const closed = new Promise<boolean>((resolve) => socket.once("close", () => resolve(false)));
    return Promise.race([closed, delay(forMs, true)]);
  }

  /** The opposite, before the deadline of a call that waits could be why. */
  const isClosed = async (port: number, requests: string) => !(await isKept(port, requests, 8_000));

  it("that wait are at most 256 on a connection", async () => {
    const service = await startService();
    const { httpPort } = service;
    expect(await isKept(httpPort, one.repeat(256))).toBe(true);
    expect(await isClosed(httpPort, one.repeat(257))).toBe(true);
    const release = lockDatabase(service);
    onTestFinished(release);
    const body = JSON.stringify(institution);
    const head = `${host}content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n`;
    const waiting = `POST /v1/investors HTTP/1.1\r\n${head}${body}`;
    expect(await isKept(httpPort, waiting + one.repeat(255))).toBe(true);
    expect(await isKept(httpPort, waiting + `${path}\r\n`.repeat(255))).toBe(true);
    const large = "x".repeat(30_000);
    const next = `POST / HTTP/1.1\r\n${host}content-length: ${large.length}\r\n\r\n${large}`;
    expect(await isKept(httpPort, waiting + next.repeat(2))).toBe(true);
    expect(await isClosed(httpPort, waiting + next.repeat(4))).toBe(true);
    expect(await isClosed(httpPort, waiting + one.repeat(256))).toBe(true);
    expect(await isClosed(httpPort, waiting + `${path}\r\n`.repeat(256))).toBe(true);
  });

  it("that nothing can be replied to, after a watch, close the connection", async () => {
    const { httpPort } = await startService();
    const head = `content-type: application/connect+json\r\n${host}content-length: 7\r\n\r\n`;
    const watching = `POST ${watch} HTTP/1.1\r\n${head}\0\0\0\0\u0002{}`;
    expect(await isKept(httpPort, watching)).toBe(true);
    expect(await isKept(httpPort, `${one}${watching}`)).toBe(true);
    expect(await isClosed(httpPort, `${watching}${one}`)).toBe(true);
    expect(await isClosed(httpPort, `${one}${watching}${one}`)).toBe(true);
  });

  it("leave nothing counted, also if there are too many before a CONNECT", async () => {
    const service = await startService();
    await fill(service);
    const { httpPort } = service;
    for (let i = 0; i < 6; i += 1) {
      expect(
        await isClosed(
          httpPort,
          `${"GET / HTTP/1.1\r\n\r\n".repeat(3_500)}CONNECT x HTTP/1.1\r\n${host}\r\n`,
        ),
      ).toBe(true);
    }
    const { status } = await fetch(`http://127.0.0.1:${httpPort}/v1/investors?pageSize=100`);
    expect(status).toBe(200);
  });

  it.each([
    [400, "no Host", ""],
    [400, "two of them", `${host}${host}`],
    [431, "129 fields", `${host}${"a: b\r\n".repeat(128)}`],
    [200, "128 fields", `${host}${"a: b\r\n".repeat(127)}`],
    [200, "an expectation that is not known", `${host}expect: miracles\r\n`],
  ])("get %i with %s", async (status, _, fields) => {
    const { httpPort } = await startService();
    const socket = openTcp(httpPort);
    socket.write(`${path}${fields}\r\n`);
    const [reply] = (await once(socket, "data")) as [Buffer];
    expect(String(reply)).toMatch(new RegExp(`^HTTP/1.1 ${status} [^]*\r\n\r\n[^]+$`));
  });

  it.each([
    ["more than 16 trailers", `0\r\n${"a: b\r\n".repeat(16)}`, "a: b\r\n\r\n"],
    ["more than 1,024 chunks that are small", "1\r\nx\r\n".repeat(1_024), "1\r\nx\r\n"],
  ])("close the connection with %s", async (_, most, more) => {
    const { httpPort } = await startService();
    const head = `POST /v1/investors HTTP/1.1\r\n${host}transfer-encoding: chunked\r\n\r\n`;
    expect(await isKept(httpPort, head + most)).toBe(true);
    expect(await isClosed(httpPort, head + most + more)).toBe(true);
  });
});

describe.runIf(process.platform === "linux")("requests that come all at once", () => {
  const fields = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "localhost",
    ":path": check,
  };
  const block = headerBlock({ ...fields, "content-type": "application/grpc", te: "trailers" });
  const calls = Array.from({ length: 120 }, (_, i) =>
    http2Frame(frameType.headers, frameFlag.endHeaders | frameFlag.endStream, 2 * i + 1, block),
  );

  it.each([
    ["HTTP/1.1", "httpPort", Buffer.from("GET / HTTP/1.1\r\n\r\n".repeat(3_600))],
    ["HTTP/2", "grpcPort", Buffer.concat([clientPreface, ...calls])],
  ] as const)("on 600 connections by %s take little memory", async (_, port, bytes) => {
    const service = await startService();
    const { child, httpPort } = service;
    const sockets = Array.from({ length: 600 }, () => openTcp(service[port]));
    await Promise.all(sockets.map((socket) => once(socket, "connect")));
    // So that the service finds all of it in one turn.
    child.kill("SIGSTOP");
    for (const socket of sockets) socket.write(bytes);
    await delay(500);
    child.kill("SIGCONT");
    const { status } = await fetch(`http://127.0.0.1:${httpPort}/healthz`);
    expect(status).toBe(200);
    expect(memoryMb(child.pid, "peak"), "peak in MB").toBeLessThan(300);
  });
});

describe("requests of odd versions of HTTP", () => {
  const host = "host: localhost\r\n\r\n";
  const requests = [
    "GET /healthz HTTP/2.0\r\n\r\n",
    `GET /healthz HTTP/2.0\r\n${host}`,
    `POST /v1/investors HTTP/2.0\r\ncontent-length: 2\r\n${host}{}`,
    "GET /healthz\r\n",
    "GET /healthz HTTP/0.9\r\n\r\n",
    `GET /healthz HTTP/3.0\r\n${host}`,
    `GET /healthz HTTP/1.2\r\n${host}`,
    `GET /healthz HTTP/1.\r\n${host}`,
    `GET /healthz HTTP/11.1\r\n${host}`,
    `GET /healthz http/1.1\r\n${host}`,
    `GET /healthz HTTPS/1.1\r\n${host}`,
    `GET /healthz ICE/1.0\r\n${host}`,
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    `PRI * HTTP/2.0\r\n${host}SM\r\n\r\n\0\0\0\u0004\0\0\0\0\0`,
  ];

  it("are refused, and their connections closed", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "1s" });
    const ask = async (port: number, request: string) => {
      const socket = openTcp(port);
      let text = "";
      socket.setEncoding("latin1").on("data", (some) => {
        text += some;
      });
      const closed = new Promise((resolve) => socket.once("close", resolve));
      socket.write(request, "latin1");
      // The beginning of HTTP/2 is one to the port of gRPC.
      if (port === service.httpPort || !request.startsWith("PRI")) await closed;
      return text;
    };
    for (const request of requests) {
      expect(await ask(service.httpPort, request), request).toMatch(/^$|^HTTP\/1.1 (400|408|505) /);
      expect(await ask(service.grpcPort, request), request).not.toContain("HTTP/1.1 2");
    }
    expect((await fetch(`http://127.0.0.1:${service.httpPort}/healthz`)).status).toBe(200);
  });
});

describe("connections that do not begin", () => {
  it.each(["plain", "TLS"])("are closed after ten seconds, on both ports, %s", async (kind) => {
    const folder = temporaryFolder();
    const env = kind === "TLS" ? await writeServerFiles(folder, await createAuthority()) : {};
    const service = await startService(env, folder);
    // Nothing, the first bytes of TLS, and those of HTTP/2.
    const beginnings = [[], [22, 3, 1, 2, 0, 1], Buffer.from("PRI * HT")].map((bytes) =>
      Buffer.from(bytes),
    );
    const sockets = [service.grpcPort, service.httpPort].flatMap((port) =>
      beginnings.map((bytes) => {
        const socket = openTcp(port).resume();
        if (bytes.length > 0) socket.write(bytes);
        return socket;
      }),
    );
    await Promise.all(
      sockets.map((socket) => new Promise((resolve) => socket.once("close", resolve))),
    );
  });
});

describe("the port of gRPC on this machine, without credentials", () => {
  it("replies only to the names of this machine, and to no page of another origin", async () => {
    const service = await startService();
    const session = rawConnection(service.grpcPort);
    const statusOf = async (headers: object) => {
      const stream = openCall(session, list, headers).end(empty);
      const [fields] = await once(stream, "response");
      stream.resume();
      return Number(fields["grpc-status"] ?? 0);
    };
    for (const host of ["localhost", `127.0.0.1:${service.grpcPort}`, "[::1]:80"]) {
      expect(await statusOf({ ":authority": host }), host).toBe(0);
    }
    for (const headers of [
      { ":authority": "evil.example" },
      { ":authority": "localhost.evil.example" },
      { origin: "https://evil.example" },
      { "sec-fetch-site": "cross-site" },
    ]) {
      expect(await statusOf(headers), JSON.stringify(headers)).toBe(permissionDenied);
    }
  });
});
