/** What holds for connections of HTTP/1.1, whichever calls they carry. */
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { hurry, lockDatabase, metric, startService, untilInFlight } from "./support/service.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";

const json = { "content-type": "application/json" };
const isChunked = { ...json, "content-length": undefined, "transfer-encoding": "chunked" };
const rest = "/v1/investors";
const rpc = "/investor.v1.InvestorService/CreateInvestor";
const record = JSON.stringify({ ...aCreate(), type: "INVESTOR_TYPE_INDIVIDUAL" });
const alive = http1("GET", "/healthz", {});
const anyHost = { "--host": "0.0.0.0", "--allow-insecure": "true" };

const get = "GET /v1/investors HTTP/1.1|Host: h:1";
const post = "POST /v1/investors HTTP/1.1|Host: h:1|Content-Type: application/json";

/** Requests as clients send them, and others, after which the connection stays. */
const keeping: [name: string, status: number, request: string][] = [
  ["curl", 200, `${get}|User-Agent: curl/8.5.0|Accept: */*`],
  ["Node's fetch", 400, `${post}|connection: keep-alive|Content-Length: 2||{}`],
  ["curl -T", 400, `${post}|Transfer-Encoding: chunked|Expect: 100-continue||2|{}|0||`],
  [".NET's HttpClient", 400, `${post}|Expect: 100-continue|Content-Length: 2||{}`],
  ["Apache HttpClient", 400, `${post}|Upgrade: TLS/1.2|Content-Length: 2||{}`],
  [
    "curl --http2, and Java's HttpClient",
    200,
    `${get}|Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA`,
  ],
  ["a WebSocket", 200, `${get}|Connection: Upgrade|Upgrade: websocket`],
  ["ab -k", 200, "GET /v1/investors?pageSize=9 HTTP/1.0|Connection: Keep-Alive|Host: h:1"],
  ["the method TRACE", 405, http1("TRACE", rest, {})],
  ["the method HEAD", 200, http1("HEAD", rest, {})],
  ["a body of another type", 415, http1("POST", rest, {}, "x")],
  ["an unknown expectation", 200, http1("GET", "/healthz", { expect: "more" })],
  ["a value like a name", 200, http1("GET", "/healthz", { "x-name": "host" })],
  ["trailers", 200, http1("GET", "/healthz", { te: "trailers", connection: "TE" })],
  ["a GET with a body", 200, http1("GET", rest, json, "{}")],
];

/** A request of the table above as bytes. */
function toBytes(text: string): string {
  const bytes = text.replaceAll("|", "\r\n");
  return bytes.includes("\r\n\r\n") ? bytes : `${bytes}\r\n\r\n`;
}

describe("a connection of HTTP/1.1", () => {
  it("stays after every request whose client does not close it", async () => {
    const { port } = await startInProcess(anyHost);
    const finalIn = (text: string) => statusesIn(text).filter((each) => each >= 200);
    for (const [name, status, text] of keeping) {
      const request = toBytes(text);
      const { socket, received } = openWire(port, request);
      await expect.poll(() => finalIn(received()), { message: name }).toEqual([status]);
      socket.write(request);
      await expect.poll(() => finalIn(received()), { message: name }).toEqual([status, status]);
      expect(received(), name).not.toMatch(/^connection: close/im);
      expect(received(), name).toMatch(/^keep-alive: timeout=75\r$/im);
    }
  });

  it("carries requests in chunks, sent without waiting for replies, in their order", async () => {
    const { port } = await startInProcess();
    const chunks = `${Buffer.byteLength(record).toString(16)}\r\n${record}\r\n0\r\n\r\n`;
    const chunked = http1("POST", rpc, isChunked) + chunks;
    const missing = http1("GET", "/nothing", {});
    const { received } = openWire(port, chunked + missing + chunked + alive);
    await expect.poll(() => statusesIn(received())).toEqual([200, 404, 200, 200]);
  });

  it("gives back its slots when it ends in a CONNECT, though Node.js takes it away", async () => {
    const service = await startInProcess();
    const release = lockDatabase(service);
    const creates = http1("POST", rpc, json, record).repeat(3);
    const connect = "CONNECT x HTTP/1.1\r\nhost: x\r\n\r\n";
    await openWire(service.port, creates + connect).closed;
    release();
    await untilInFlight(service, 0);
  });

  it("takes the rest of a request that was refused for as long as it goes on arriving", async () => {
    const { port } = await startInProcess();
    const refused = [
      ["/nothing", 404, ""],
      [rest, 413, "x".repeat(70_000)],
    ] as const;
    const sending = refused.map(async ([path, status, first]) => {
      const head = http1("POST", path, { ...json, "content-length": first.length + 30 });
      const { socket, received } = openWire(port, head + first);
      // For longer than it may pause.
      for (let i = 0; i < 10; i += 1) {
        await delay(600);
        socket.write("abc");
      }
      socket.write(alive);
      await expect.poll(() => statusesIn(received())).toEqual([status, 200]);
    });
    await Promise.all(sending);
  });

  it("is closed if the rest of a request that was refused pauses for five seconds", async () => {
    const { port } = await startService({ NODE_OPTIONS: hurry(4) });
    const head = http1("POST", "/nothing", { "content-length": 1_000 });
    const { socket, received, closed } = openWire(port, head);
    await expect.poll(() => statusesIn(received())).toEqual([404]);
    socket.write("a");
    const start = performance.now();
    await closed;
    expect(performance.now() - start).toBeLessThan(10_000);
  });

  it("has / as the path of a target that has none", async () => {
    const { port } = await startInProcess();
    for (const target of ["http://localhost", "http://localhost?", "HTTP://localhost/"]) {
      const { received } = openWire(port, http1("GET", target, {}));
      await expect.poll(received, { message: target }).toMatch(/^HTTP\/1\.1 200 [\s\S]*<html/);
    }
  });
});

describe("a request that is not well-formed", () => {
  const tail = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
  const toOddHost = (type: string) => http1("POST", rpc, { host: "[", "content-type": type }, "{}");

  const requests = {
    "no HTTP": "nonsense\r\n\r\n",
    "a Host that opens a bracket": toOddHost("application/json"),
    "the same with a charset": toOddHost("application/json; charset=utf-8"),
    "the same by gRPC-Web": toOddHost("application/grpc-web"),
    "two Hosts": `GET /healthz HTTP/1.1\r\nhost: localhost\r\nHOST: localhost\r\n\r\n`,
    "a Host of two words": `POST ${rpc}?a HTTP/1.1\r\nhost: a b\r\n${tail}`,
    "no Host by HTTP/1.0": `POST ${rpc} HTTP/1.0\r\n${tail}`,
    "no Host by HTTP/1.1": `POST ${rpc} HTTP/1.1\r\n${tail}`,
    "a target without a host": "GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "escapes that are none": "GET //?%zz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two lengths": `POST ${rpc} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n${tail}`,
  };

  it("is refused, and not reset, for a URL that is too long", async () => {
    const service = await startInProcess();
    for (const length of [16_500, 1_000_000]) {
      const { closed } = openWire(service.port, http1("GET", `/?a=${"b".repeat(length)}`, {}));
      const head = "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close";
      expect(await closed).toBe(`${head}\r\nContent-Length: 0\r\n\r\n`);
    }
    const name = "investor_records_connections_closed_total";
    expect(await metric(service, name, '{reason="http1_error"}')).toBe(2);
  });

  it("is not answered while an earlier one is unanswered, as the reply would pass for that one's", async () => {
    const service = await startInProcess();
    lockDatabase(service);
    const create = http1("POST", rpc, json, record);
    const badChunk = `${http1("POST", rpc, isChunked)}nonsense\r\n`;
    const tooLarge = http1("GET", `${rest}?a=${"b".repeat(17_000)}`, {});
    for (const request of ["nonsense\r\n\r\n", tooLarge, badChunk]) {
      expect(await openWire(service.port, create + request).closed, request).toBe("");
    }
    expect(statusesIn(await openWire(service.port, badChunk).closed)).toEqual([400]);
  });

  it.each([{}, anyHost])(
    "is refused with a status of its own, and ends nothing else, with settings %j",
    async (flags) => {
      const { port, errors } = await startInProcess(flags);
      for (const [message, request] of Object.entries(requests)) {
        const { received } = openWire(port, request);
        await expect.poll(received, { message }).toMatch(/^HTTP\/1\.1 4\d\d /);
        await expect.poll(openWire(port, alive).received, { message }).toContain("alive");
      }
      expect(errors).toEqual([]);
    },
  );
});
