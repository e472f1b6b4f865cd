import { once } from "node:events";
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { expect, it, onTestFinished, vi } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { startEngine } from "../support/engine.ts";
import { openGate, promptly } from "../support/gate.ts";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
  widestWindows,
} from "../support/http2-frames.ts";
import { anInvestor } from "../support/records.ts";

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
  const fields = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/investor.v1.InvestorService/ListInvestors",
    ":authority": "localhost",
    "content-type": "application/json",
  };
  const calls = Array.from({ length: 20 }, (_, i) => [
    http2Frame(frameType.headers, frameFlag.endHeaders, 2 * i + 1, headerBlock(fields)),
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
