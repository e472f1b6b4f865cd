import { once } from "node:events";
import { connect as connectHttp2, type Settings } from "node:http2";
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { expect, it, onTestFinished, vi } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { readTls } from "../../src/http/tls.ts";
import { reserveKey } from "../../src/service/context.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { startEngine } from "../support/engine.ts";
import { temporaryFolder } from "../support/folder.ts";
import { openGate, promptly } from "../support/gate.ts";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
  widestWindows,
} from "../support/http2-frames.ts";
import { openList } from "../support/raw-grpc.ts";
import { anInvestor } from "../support/records.ts";

/** The code of a call that its client cancels (RFC 9113, 7). */
const http2Cancel = 8;

/** The headers of a list by Connect. */
const list = {
  ":method": "POST",
  ":scheme": "http",
  ":path": "/investor.v1.InvestorService/ListInvestors",
  ":authority": "localhost",
  "content-type": "application/json",
};

const aPage = Array.from({ length: 1_000 }, () => anInvestor({ lastName: "x".repeat(200) }));

async function serve() {
  const gate = openGate(100, 5_000);
  const methods: Partial<ServiceImpl<typeof InvestorService>> = {
    listInvestors: () => ({ investors: aPage }),
  };
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const server = await startEngine({ versions: ["h2"], services, gate });
  onTestFinished(server.destroy);
  const options = { port: server.port, host: "127.0.0.1", allowHalfOpen: true };
  const socket = connect(options).on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return { gate, server, socket };
}

it("a call is in flight until its reply was written, however wide the windows are", async () => {
  const { gate, socket } = await serve();
  const calls = Array.from({ length: 20 }, (_, i) => [
    http2Frame(frameType.headers, frameFlag.endHeaders, 2 * i + 1, headerBlock(list)),
    http2Frame(frameType.data, frameFlag.endStream, 2 * i + 1, Buffer.from("{}")),
  ]);
  socket.pause();
  socket.write(Buffer.concat([clientPreface, widestWindows, ...calls.flat()]));
  await expect.poll(() => gate.inFlight).toBeGreaterThan(0);
  await delay(500);
  expect(gate.inFlight).toBeGreaterThan(0);
  socket.resume();
  await expect.poll(() => gate.inFlight, promptly).toBe(0);
});

it("a connection outlasts many calls that its client cancels at once", async () => {
  const { gate, socket } = await serve();
  const cancelled = Buffer.from([0, 0, 0, http2Cancel]);
  const calls = Array.from({ length: 600 }, (_, i) => [
    http2Frame(frameType.headers, frameFlag.endHeaders, 2 * i + 1, headerBlock(list)),
    http2Frame(frameType.resetStream, frameFlag.none, 2 * i + 1, cancelled),
  ]);
  socket.write(clientPreface);
  await once(socket, "data");
  // Its limits apply from then on.
  const acknowledged = http2Frame(frameType.settings, 1, 0, Buffer.alloc(0));
  const last = http2Frame(frameType.ping, frameFlag.none, 0, Buffer.from("was read"));
  let text = "";
  socket.setEncoding("latin1").on("data", (chunk) => {
    text += chunk;
  });
  socket.write(Buffer.concat([acknowledged, ...calls.flat(), last]));
  await expect.poll(() => text, promptly).toContain("was read");
  await delay(100);
  text = "";
  socket.write(
    Buffer.concat([
      widestWindows,
      http2Frame(frameType.headers, frameFlag.endHeaders, 1_301, headerBlock(list)),
      http2Frame(frameType.data, frameFlag.endStream, 1_301, Buffer.from("{}")),
    ]),
  );
  await expect.poll(() => text.length, promptly).toBeGreaterThan(200_000);
  await expect.poll(() => gate.inFlight, promptly).toBe(0);
});

it("a connection is closed whose client has ended its session", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const { server, socket } = await serve();
  const goaway = http2Frame(frameType.goaway, frameFlag.none, 0, Buffer.alloc(8));
  socket.resume().write(Buffer.concat([clientPreface, goaway]));
  // Node.js then waits for the client to close the connection, too.
  await once(socket, "end");
  vi.advanceTimersByTime(60_000);
  await server.drain();
  await server.closed;
});

/** Serves lists on TLS, whose whole one has no end. */
async function serveSecure(settings: Settings = {}) {
  const authority = await createAuthority();
  const { TLS_CERT: certFile, TLS_KEY: keyFile } = await writeServerFiles(
    temporaryFolder(),
    authority,
  );
  const gate = openGate(100, 60_000);
  const methods: Partial<ServiceImpl<typeof InvestorService>> = {
    async listInvestors(_, { values }) {
      // As much as a page of the largest records takes.
      await values.get(reserveKey)(850_000, 850_000);
      return { investors: aPage.slice(0, 100), nextPageToken: "more" };
    },
  };
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const tls = await readTls({ certFile, keyFile, clientCaFile: undefined });
  const server = await startEngine({ versions: ["http/1.1", "h2"], services, gate, tls });
  onTestFinished(server.destroy);
  const session = connectHttp2(`https://localhost:${server.port}`, { ca: authority.ca, settings });
  session.on("error", () => {});
  onTestFinished(() => session.destroy());
  return { gate, session };
}

it("on TLS, calls are replied to beside lists that nobody reads", async () => {
  const { gate, session } = await serveSecure();
  const lists = [await openList(session), await openList(session), await openList(session)];
  for (let i = 0; i < 3; i += 1) {
    const headers = {
      ":method": "POST",
      ":path": "/investor.v1.InvestorService/ListInvestors",
      "content-type": "application/json",
    };
    const stream = session.request(headers);
    stream.end("{}");
    let bytes = 0;
    stream.on("data", (chunk) => {
      bytes += chunk.length;
    });
    await once(stream, "end");
    expect(bytes).toBeGreaterThan(40_000);
  }
  expect(lists.map(({ closed }) => closed)).toEqual([false, false, false]);
  expect(gate.inFlight).toBe(3);
});

it("on TLS, calls are replied to beside replies whose streams are not read", async () => {
  const { session } = await serveSecure({ initialWindowSize: 1_000 });
  const headers = {
    ":method": "POST",
    ":path": "/investor.v1.InvestorService/ListInvestors",
    "content-type": "application/json",
  };
  const unread = Array.from({ length: 10 }, () => {
    const stream = session.request(headers);
    stream.end("{}");
    return stream;
  });
  for (const stream of unread) await once(stream, "response");
  await delay(500);
  const stream = session.request({ ...headers, ":path": "/investor.v1.InvestorService/None" });
  stream.end("{}");
  const [{ ":status": status }] = (await once(stream, "response")) as [{ ":status": number }];
  stream.resume();
  await once(stream, "end");
  expect(status).toBe(404);
  expect(unread.map(({ closed }) => closed)).not.toContain(true);
});

it("on TLS, a list that nobody reads is broken off after 30 seconds", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { gate, session } = await serveSecure();
  const list = await openList(session);
  await delay(500);
  vi.advanceTimersByTime(29_000);
  await delay(100);
  expect([list.closed, gate.inFlight]).toEqual([false, 1]);
  vi.advanceTimersByTime(2_000);
  await expect.poll(() => gate.inFlight, promptly).toBe(0);
});
