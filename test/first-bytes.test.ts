/** How a port tells by the first bytes what a connection carries, and what becomes of one that does not begin. */
import { once } from "node:events";
import { connect as connectTls } from "node:tls";
import { describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "./support/certificates.ts";
import { temporaryFolder } from "./support/folder.ts";
import {
  clientPreface,
  fieldsOf,
  frameType,
  openStream,
  sendData,
} from "./support/http2-frames.ts";
import { messages, paths } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { hurry, type Service, startService } from "./support/service.ts";
import { http1, openWire } from "./support/tcp.ts";

const alive = http1("GET", "/healthz", {});
const check = Buffer.concat([
  clientPreface,
  openStream(1, fieldsOf(paths.check)),
  sendData(1, messages.empty, true),
]);
/** The message of a check by gRPC whose status is SERVING. */
const serving = "\0\0\0\0\x02\b\x01";
/** The frame of the server's settings, without its length. */
const settings = String.fromCharCode(frameType.settings);

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
    "carries %s, whole, byte by byte or cut anywhere",
    async (_, bytes, reply) => {
      const { port } = await startInProcess();
      const cuts = [[bytes], Array.from(bytes, (byte) => Uint8Array.of(byte))];
      for (let i = 1; i < 5; i += 1) cuts.push([bytes.subarray(0, i), bytes.subarray(i)]);
      for (const parts of cuts) {
        const { socket, received } = openWire(port);
        for (const part of parts) {
          await new Promise((sent) => socket.write(part, sent));
        }
        await expect.poll(received).toContain(reply);
      }
    },
  );

  it("serves the same on each port of several", async () => {
    const { ports } = await startInProcess({ "--port": "0,0" });
    expect(new Set(ports).size).toBe(2);
    for (const port of ports) {
      for (const [, bytes, reply] of beginnings) {
        const { socket, received } = openWire(port);
        socket.write(bytes);
        await expect.poll(received).toContain(reply);
      }
    }
  });

  it("has the reply though its client has ended its side", async () => {
    const { port } = await startInProcess();
    const { socket, closed } = openWire(port);
    socket.end(alive);
    expect(await closed).toContain('{"status":"alive"}');
  });
});

describe("a connection with TLS", () => {
  it.each([
    [undefined, false],
    [["http/1.1"], "http/1.1"],
    [["h2", "http/1.1"], "h2"],
  ])("of a client that offers %j carries %j", async (ALPNProtocols, expected) => {
    const authority = await createAuthority();
    const { TLS_CERT, TLS_KEY } = await writeServerFiles(temporaryFolder(), authority);
    const { port } = await startInProcess({ "--tls-cert": TLS_CERT, "--tls-key": TLS_KEY });
    const options = { port, servername: "localhost", ca: authority.ca };
    const socket = connectTls({ ...options, ...(ALPNProtocols && { ALPNProtocols }) });
    onTestFinished(() => void socket.destroy());
    await once(socket, "secureConnect");
    expect(socket.alpnProtocol).toBe(expected);
    let received = "";
    socket.on("data", (chunk) => {
      received += chunk.toString("latin1");
    });
    socket.write(expected === "h2" ? check : alive);
    await expect.poll(() => received).toContain(expected === "h2" ? settings : "alive");
  });
});

/** The reasons why connections of a service were closed, by what their clients have sent. */
async function reasonsFor(service: Service, all: Record<string, Uint8Array | string>) {
  const names = Object.entries(all).map(async ([name, bytes]) => {
    const { socket, closed } = openWire(service.port, bytes);
    await once(socket, "connect");
    const peer = `127.0.0.1:${socket.localPort}`;
    await closed;
    return [peer, name] as const;
  });
  const nameOf = new Map(await Promise.all(names));
  const told = () =>
    Array.from(
      service.output().matchAll(/"reason":"(.*?)","peer":"(.*?)"/g),
      ([, reason, peer = ""]) => [nameOf.get(peer), reason],
    );
  await expect.poll(() => told().length).toBeGreaterThanOrEqual(nameOf.size);
  return Object.fromEntries(told());
}

describe("a connection that does not begin", () => {
  /** Ten seconds are half a second there. */
  const fast = { NODE_OPTIONS: hurry(20) };

  it("in ten seconds is closed, counted and logged", async () => {
    const all = {
      nothing: "",
      P: "P",
      PR: "PR",
      PRI: "PRI",
      "half a preface": clientPreface.subarray(0, 10),
      "a preface without settings": clientPreface.subarray(0, -9),
      "half a head": "GET / HTTP/1.1\r\n",
    };
    expect(await reasonsFor(await startService(fast), all)).toEqual({
      nothing: "unfinished_request",
      P: "unfinished_request",
      PR: "unfinished_request",
      PRI: "no_settings",
      "half a preface": "no_settings",
      "a preface without settings": "no_settings",
      "half a head": "unfinished_request",
    });
  });

  it("with the other of TLS and plain text is closed, counted and logged", async () => {
    const files = await writeServerFiles(temporaryFolder(), await createAuthority());
    const withTls = await startService({ ...fast, ...files });
    const all = { nothing: "", "HTTP/1.1": alive, "HTTP/2": check };
    expect(await reasonsFor(withTls, all)).toEqual({
      nothing: "no_handshake",
      "HTTP/1.1": "no_handshake",
      "HTTP/2": "no_handshake",
    });
    const hello = Buffer.from("160301004001000144", "hex");
    expect(await reasonsFor(await startService(fast), { hello })).toEqual({ hello: "http1_error" });
  });
});
