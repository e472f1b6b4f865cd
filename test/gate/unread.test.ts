/** Clients that read nothing, or slowly, of what they ask for. */
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { expect, inject, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { makeFullFolder } from "../support/copying.ts";
import {
  clientPreface,
  fieldsOf,
  frameType,
  http2Frame,
  openStream,
  sendData,
  wideWindows,
} from "../support/http2-frames.ts";
import { messages, paths } from "../support/raw-grpc.ts";
import { hurry, metric, startService, untilStill, waitFor } from "../support/service.ts";
import { http1, openWire } from "../support/tcp.ts";

/** No bound, so that a busy machine may take its time. */
const patient = { REQUEST_TIMEOUT: "10m" };

/** How many times as fast as they say clocks run. */
const speed = 10;

/** Bytes in a millisecond of the test. */
const rate = (speed * 24 * 1024) / 1_000;

it("20 MB of a whole list arrive at 24 KiB a second, over HTTP/1.1 and, beside others, HTTP/2", {
  timeout: 4 * inject("testMs"),
}, async () => {
  const folder = await makeFullFolder(2_400);
  const files = await writeServerFiles(folder, await createAuthority());
  const settings = { ...patient, ...files, NODE_OPTIONS: hurry(speed) };
  const { port } = await startService(settings, folder);
  const openGet = (stream: number, path: string) => {
    const fields = { ...fieldsOf(path), ":method": "GET" };
    return Buffer.concat([openStream(stream, fields), sendData(stream, Buffer.alloc(0), true)]);
  };
  const read = async (protocol: string, request: Uint8Array | string) => {
    const options = { port, ALPNProtocols: [protocol], rejectUnauthorized: false };
    const socket = connectTls(options);
    onTestFinished(() => void socket.destroy());
    socket.write(request);
    let tail = "";
    let count = 0;
    let bytes = 0;
    const start = performance.now();
    for await (const chunk of socket) {
      count += 1;
      bytes += chunk.length;
      // Its reply waits for what the system buffers of the list.
      const isOther = protocol === "h2" && count % 100 === 0;
      if (isOther) socket.write(openGet(count + 1, "/v1/investors/none"));
      tail = (tail + chunk.toString("latin1")).slice(-40);
      if (tail.includes("}]")) break;
      const aheadMs = start + bytes / rate - performance.now();
      if (aheadMs > 100) await delay(aheadMs);
    }
    return { tail, bytes };
  };
  const request = Buffer.concat([clientPreface, wideWindows, openGet(1, "/v1/investors")]);
  const reads = [read("h2", request), read("http/1.1", http1("GET", "/v1/investors", {}))];
  for (const { tail, bytes } of await Promise.all(reads)) {
    expect(tail).toContain("}]");
    expect(bytes).toBeGreaterThan(20_000_000);
  }
});

it("a connection of HTTP/2 is closed after an error, though its client reads nothing", async () => {
  const settings = { ...patient, NODE_OPTIONS: hurry(20) };
  const service = await startService(settings, await makeFullFolder(130));
  const { socket } = openWire(service.port, clientPreface);
  socket.pause().write(wideWindows);
  for (let stream = 1; stream < 40; stream += 2) {
    socket.write(openStream(stream, fieldsOf(paths.list)));
    socket.write(sendData(stream, messages.fullPage, true));
  }
  const calls = "investor_records_rpc_server_calls_in_flight";
  await waitFor(async () => (await metric(service, calls)) > 0);
  // Until the system takes no more on behalf of the client.
  await untilStill(async () => metric(service, calls));
  const garbage = http2Frame(frameType.settings, 0, 1, Buffer.alloc(0));
  const isClosed = () => {
    // Without reading, only writing shows it.
    socket.write(garbage);
    return socket.closed;
  };
  await expect.poll(isClosed, { interval: 500 }).toBe(true);
});
