import { once } from "node:events";
import { constants } from "node:http2";
import { connect } from "node:net";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createHealth } from "../../src/operations/health.ts";
import { createReflection } from "../../src/operations/reflection.ts";
import { startEngine } from "../support/engine.ts";
import { openGate, promptly } from "../support/gate.ts";
import {
  clientPreface,
  closedWindows,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import { frame, openCall, openList, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { anInvestor } from "../support/records.ts";

const checkPath = "/grpc.health.v1.Health/Check";
const watchPath = "/grpc.health.v1.Health/Watch";
const reflectionPath = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const listPath = "/investor.v1.InvestorService/ListInvestors";
const empty = frame(Buffer.alloc(0));
const codes = [constants.NGHTTP2_NO_ERROR, constants.NGHTTP2_CANCEL];

const aPage = Array.from({ length: 1_000 }, () => anInvestor({ lastName: "x".repeat(200) }));

async function serve(list = { investors: aPage, nextPageToken: "more" }) {
  const logged: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => logged.push(line) });
  const signals: AbortSignal[] = [];
  const { implementation } = createHealth([InvestorService.typeName]);
  const gate = openGate(100, 5_000, log);
  const methods: Partial<ServiceImpl<typeof InvestorService>> = {
    listInvestors: () => list,
  };
  const server = await startEngine({
    versions: ["h2"],
    services: [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)],
    health: {
      ...implementation,
      watch(request, context) {
        signals.push(context.signal);
        return implementation.watch(request, context);
      },
    },
    reflection: createReflection([InvestorService], []),
    gate,
    log,
  });
  onTestFinished(() => server.destroy());
  return { gate, logged, port: server.port, session: rawConnection(server.port), signals };
}

/** The types of the frames in what came so far. */
function typesOf(bytes: Buffer): number[] {
  const types: number[] = [];
  for (let at = 0; at + 9 <= bytes.length; at += 9 + bytes.readUIntBE(at, 3)) {
    types.push(bytes.readUInt8(at + 3));
  }
  return types;
}

describe.each(codes)("a stream that its client resets with code %i", (code) => {
  it("ends the work on a watch", async () => {
    const { session, signals } = await serve();
    const stream = openCall(session, watchPath);
    stream.end(empty);
    await once(stream, "data");
    expect(signals.map(({ aborted }) => aborted)).toEqual([false]);
    stream.close(code);
    await expect.poll(() => signals.map(({ aborted }) => aborted), promptly).toEqual([true]);
  });

  it("frees the slot of a list that is unread", async () => {
    const { gate, session } = await serve();
    const stream = await openList(session);
    expect(gate.inFlight).toBe(1);
    stream.close(code);
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
    // Others on its connection are served on.
    expect((await rawCall(session, checkPath, empty)).status).toBe(0);
  });

  it("frees the slot of a list that is written but unread", async () => {
    const { gate, session } = await serve({ investors: aPage.slice(0, 10), nextPageToken: "" });
    session.settings({ initialWindowSize: 0 });
    const stream = session.request({ ":path": "/v1/investors" }).on("error", () => {});
    await once(stream, "response");
    expect(gate.inFlight).toBe(1);
    stream.close(code);
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });

  it("frees the slot of a call that was replied to before all of it came", async () => {
    const { gate, port } = await serve();
    const fields = {
      ":method": "POST",
      ":scheme": "http",
      ":path": listPath,
      ":authority": "localhost",
      "content-type": "application/json",
      "connect-timeout-ms": "20",
    };
    const socket = connect(port, "127.0.0.1").on("error", () => {});
    onTestFinished(() => void socket.destroy());
    let received = Buffer.alloc(0);
    socket.on("data", (chunk: Buffer) => {
      received = Buffer.concat([received, chunk]);
    });
    const headers = http2Frame(frameType.headers, frameFlag.endHeaders, 1, headerBlock(fields));
    socket.write(Buffer.concat([clientPreface, closedWindows, headers]));
    await expect.poll(() => typesOf(received), promptly).toContain(frameType.headers);
    expect(gate.inFlight).toBe(1);
    socket.write(
      http2Frame(frameType.resetStream, frameFlag.none, 1, Buffer.from([0, 0, 0, code])),
    );
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });

  it("is no fault of the service", async () => {
    const { logged, port, session } = await serve();
    const fields = {
      ":method": "POST",
      ":scheme": "http",
      ":path": reflectionPath,
      ":authority": "localhost",
      "content-type": "application/grpc",
      te: "trailers",
      expect: "100-continue",
    };
    const socket = connect(port, "127.0.0.1").on("error", () => {});
    onTestFinished(() => void socket.destroy());
    const calls = [1, 3, 5, 7].flatMap((id) => [
      http2Frame(frameType.headers, frameFlag.endHeaders, id, headerBlock(fields)),
      http2Frame(frameType.data, frameFlag.none, id, frame(Buffer.from([0x3a, 0]))),
      http2Frame(frameType.resetStream, frameFlag.none, id, Buffer.from([0, 0, 0, code])),
    ]);
    socket.write(Buffer.concat([clientPreface, ...calls]));
    await once(socket, "data");
    await rawCall(session, checkPath, empty);
    expect(logged).toEqual([]);
  });

  it("leaves its connection to the next calls, however much was not sent", async () => {
    const { session } = await serve();
    for (let i = 0; i < 100; i += 1) {
      const stream = openCall(session, listPath);
      stream.end(empty);
      await once(stream, "response");
      stream.close(code);
    }
    const { status } = await rawCall(session, checkPath, empty);
    expect(status).toBe(0);
  });
});

describe("HEAD", () => {
  it("ends with its headers, though the client does not end its request", async () => {
    const { gate, session } = await serve();
    const head = { ":method": "HEAD", ":path": "/v1/investors" };
    const stream = session.request(head, { endStream: false }).on("error", () => {});
    const [headers] = await once(stream, "response");
    expect(headers[":status"]).toBe(200);
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });
});
