/** How a port tells by the first bytes what a connection carries, and what becomes of one that does not begin. */
import { once } from "node:events";
import { connect as connectTls } from "node:tls";
import { describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "./support/certificates.ts";
import { temporaryFolder } from "./support/folder.ts";
import {
  clientPreface,
  fieldsOf,
  firstCall,
  frameType,
  http2Frame,
  openStream,
} from "./support/http2-frames.ts";
import { messages, paths } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { end, hurry, startService } from "./support/service.ts";
import { http1, openWire } from "./support/tcp.ts";

const alive = http1("GET", "/healthz", {});
const check = firstCall(paths.check, messages.empty);
/** The message of a check by gRPC whose status is SERVING. */
const serving = "\0\0\0\0\x02\b\x01";

/** What is sent in one connection, and what its first reply has. */
const beginnings: [name: string, bytes: Uint8Array, reply: string][] = [
  ["HTTP/1.1", Buffer.from(alive), '{"status":"alive"}'],
  ["HTTP/1.1 after an empty line", Buffer.from(`\r\n${alive}`), '{"status":"alive"}'],
  ["HTTP/1.0", Buffer.from("GET /healthz HTTP/1.0\r\n\r\n"), '{"status":"alive"}'],
  ["a method that begins like HTTP/2", Buffer.from(http1("PROPFIND", "/", {})), " 405 "],
  ["HTTP/2 with prior knowledge", check, serving],
];

describe("a connection in plain text", () => {
  it.each(beginnings)(
    "carries %s, whole, byte by byte or cut anywhere, on each port of several",
    async (_, bytes, reply) => {
      const { ports } = await startInProcess({ "--port": "0,0" });
      expect(new Set(ports).size).toBe(2);
      const cuts = [[bytes], Array.from(bytes, (byte) => Uint8Array.of(byte))];
      for (let i = 1; i < 5; i += 1) cuts.push([bytes.subarray(0, i), bytes.subarray(i)]);
      for (const parts of cuts) {
        for (const port of ports) {
          const { socket, received } = openWire(port);
          for (const part of parts) await new Promise((sent) => socket.write(part, sent));
          await expect.poll(received).toContain(reply);
        }
      }
    },
  );

  it("has the reply though its client has ended its side", async () => {
    const { port } = await startInProcess();
    const { socket, closed } = openWire(port);
    socket.end(alive);
    expect(await closed).toContain('{"status":"alive"}');
  });

  it.each([
    [0, "expects to be asked for its body", paths.check, { expect: "100-continue" }],
    [8, "expects to be asked for its body", paths.check, { expect: "100-continue" }],
    [0, "fails at once", paths.list, { "grpc-timeout": "soon" }],
  ])("goes on after it is reset in its first packet with %i: a stream that %s", async (...row) => {
    const [code, , path, fields] = row;
    const service = await startService();
    const { port, output } = service;
    const stream = openStream(3, fieldsOf(path, fields));
    const reset = http2Frame(frameType.resetStream, 0, 3, Buffer.from([0, 0, 0, code]));
    const { received } = openWire(port, Buffer.concat([check, stream, reset]));
    await expect.poll(received).toContain(serving);
    await expect.poll(openWire(port, alive).received).toContain('{"status":"alive"}');
    await end(service);
    expect(output()).not.toContain('"level":50');
  });
});

/**
 * What a client sends, of which it may send the last part again and again, what it gets, and why its connection is
 * closed; it may have been set up for a protocol by TLS.
 */
type Unfinished = Record<
  string,
  {
    on?: "h2" | "http/1.1";
    bytes: Uint8Array | string;
    drip?: string;
    reply?: string;
    reason: string;
  }
>;

const post = { "content-type": "application/json", "content-length": 60_000 };

const inPlainText: Unfinished = {
  nothing: { bytes: "", reason: "unfinished_request" },
  PR: { bytes: "PR", reason: "unfinished_request" },
  PRI: { bytes: "PRI", reason: "no_settings" },
  "half a preface": { bytes: clientPreface.subarray(0, 10), reason: "no_settings" },
  "a preface without settings": { bytes: clientPreface.subarray(0, -9), reason: "no_settings" },
  "half a head": {
    ...{ bytes: "GET / HTTP/1.1\r\n", reply: "HTTP/1.1 408 Request Timeout\r\n" },
    reason: "unfinished_request",
  },
  "half a head that drips": {
    ...{ bytes: "GET / HTTP/1.1\r\n", drip: "x: y\r\n" },
    reason: "unfinished_request",
  },
  "half a body that drips": {
    ...{ bytes: http1("POST", "/v1/investors", post), drip: " " },
    reason: "unfinished_request",
  },
  "a handshake": { bytes: Buffer.from("160301004001000144", "hex"), reason: "http1_error" },
};

const withTls: Unfinished = {
  nothing: { bytes: "", reason: "no_handshake" },
  "half a handshake": { bytes: Buffer.from("160301400001020144", "hex"), reason: "no_handshake" },
  "HTTP/1.1": { bytes: alive, reason: "no_handshake" },
  "HTTP/2": { bytes: check, reason: "no_handshake" },
  "nothing, of HTTP/1.1": { on: "http/1.1", bytes: "", reason: "unfinished_request" },
  "nothing, of HTTP/2": { on: "h2", bytes: "", reason: "no_settings" },
};

it.each([
  ["in plain text", inPlainText],
  ["with TLS", withTls],
])(
  "a connection %s whose request has not come in ten seconds is closed and logged",
  async (_, all) => {
    const files =
      all === withTls ? await writeServerFiles(temporaryFolder(), await createAuthority()) : {};
    // Ten seconds are half a second there.
    const env = { ...files, REQUEST_TIMEOUT: "10s", NODE_OPTIONS: hurry(20) };
    const { port, output } = await startService(env);
    const closing = Object.entries(all).map(
      async ([name, { on, bytes, drip = "", reply = "", reason }]) => {
        const socket = on
          ? connectTls({ port, ALPNProtocols: [on], rejectUnauthorized: false })
          : openWire(port).socket;
        let received = "";
        socket.on("data", (chunk) => {
          received += chunk;
        });
        socket.on("error", () => {}).write(bytes);
        await once(socket, "connect");
        const line = `"reason":"${reason}","peer":"127.0.0.1:${socket.localPort}"`;
        const dripping = setInterval(() => socket.write(drip), 20);
        onTestFinished(() => clearInterval(dripping));
        await expect.poll(() => socket.closed, { message: name }).toBe(true);
        await expect.poll(output, { message: name }).toContain(line);
        expect(received, name).toContain(reply);
      },
    );
    await Promise.all(closing);
  },
);
