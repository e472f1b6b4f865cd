/** What holds for connections of HTTP/1.1, whichever calls they carry. */
import { execFile } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { describe, expect, it, onTestFinished } from "vitest";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { lockDatabase, metric, startService, untilWritten } from "./support/service.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";
import { hasTool } from "./support/tools.ts";

const json = { "content-type": "application/json" };
const rpc = "/investor.v1.InvestorService/CreateInvestor";
const record = JSON.stringify({ ...aCreate(), type: "INVESTOR_TYPE_INDIVIDUAL" });
const create = http1("POST", rpc, json, record);
const alive = http1("GET", "/healthz", {});

/** Serves every request with 200, by nothing but Node.js. */
async function startBareServer(): Promise<number> {
  const server = createServer((req, res) => {
    res.setHeader("content-length", 2);
    req.resume().on("end", () => res.end("{}"));
  });
  server.listen(0, "127.0.0.1");
  onTestFinished(() => void server.close().closeAllConnections());
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

/** Sends a request twice on one connection, and tells whether that could carry a third one. */
async function sendTwice(port: number, request: string) {
  const { socket, received } = openWire(port, request);
  const final = () => statusesIn(received()).filter((status) => status >= 200);
  await expect.poll(final, { message: request }).toHaveLength(1);
  socket.write(request);
  const replies = () => (socket.closed ? 2 : final().length);
  await expect.poll(replies, { message: request }).toBe(2);
  await delay(20);
  const isOpen = !socket.closed && socket.readable && !/^connection: close/im.test(received());
  return { isOpen, statuses: final() };
}

/** The first requests of common clients on a connection, as they are on the wire. */
const clients = {
  curl: "GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: curl/8.5.0|Accept: */*",
  "curl --http2": `GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: curl/8.5.0|Accept: */*|
    Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA`,
  "curl -T": `POST /v1/investors HTTP/1.1|Host: h:1|User-Agent: curl/8.5.0|Accept: */*|
    Transfer-Encoding: chunked|Content-Type: application/json|Expect: 100-continue||2|{}|0||`,
  wget: `GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: Wget/1.21.4|Accept: */*|
    Accept-Encoding: identity|Connection: Keep-Alive`,
  "Java's HttpClient": `GET /v1/investors HTTP/1.1|Connection: Upgrade, HTTP2-Settings|Host: h:1|
    HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA|Upgrade: h2c|
    User-Agent: Java-http-client/21.0.2`,
  "Java's HttpURLConnection": `GET /v1/investors HTTP/1.1|User-Agent: Java/17.0.9|Host: h:1|
    Accept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2|Connection: keep-alive`,
  okhttp: `GET /v1/investors HTTP/1.1|Host: h:1|Connection: Keep-Alive|Accept-Encoding: gzip|
    User-Agent: okhttp/4.12.0`,
  "Apache HttpClient": `POST /v1/investors HTTP/1.1|Accept-Encoding: gzip, x-gzip, deflate|
    Content-Length: 2|Content-Type: application/json; charset=UTF-8|Host: h:1|
    Connection: keep-alive|Upgrade: TLS/1.2|User-Agent: Apache-HttpClient/5.3 (Java/17)||{}`,
  "Python's requests": `GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: python-requests/2.31.0|
    Accept-Encoding: gzip, deflate, br|Accept: */*|Connection: keep-alive`,
  urllib3: "GET /v1/investors HTTP/1.1|Host: h:1|Accept-Encoding: identity|User-Agent: urllib3/2",
  "Python's urllib": `GET /v1/investors HTTP/1.1|Accept-Encoding: identity|Host: h:1|
    User-Agent: Python-urllib/3.12|Connection: close`,
  httpx: `GET /v1/investors HTTP/1.1|Host: h:1|Accept: */*|Accept-Encoding: gzip, deflate|
    Connection: keep-alive|User-Agent: python-httpx/0.27.0`,
  "Go's net/http": `POST /v1/investors HTTP/1.1|Host: h:1|User-Agent: Go-http-client/1.1|
    Transfer-Encoding: chunked|Content-Type: application/json|Accept-Encoding: gzip||2|{}|0||`,
  "Node's fetch": `POST /v1/investors HTTP/1.1|host: h:1|connection: keep-alive|
    content-type: application/json|accept: */*|accept-language: *|sec-fetch-mode: cors|
    user-agent: node|accept-encoding: gzip, deflate|content-length: 2||{}`,
  axios: `GET /v1/investors HTTP/1.1|Accept: application/json, text/plain, */*|
    User-Agent: axios/1.6.8|Accept-Encoding: gzip, compress, deflate, br|Host: h:1|
    Connection: keep-alive`,
  ".NET's HttpClient": `POST /v1/investors HTTP/1.1|Host: h:1|Expect: 100-continue|
    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00|
    Content-Type: application/json; charset=utf-8|Content-Length: 2||{}`,
  "Ruby's Net::HTTP": `GET /v1/investors HTTP/1.1|Accept-Encoding: gzip;q=1.0,deflate;q=0.6|
    Accept: */*|User-Agent: Ruby|Host: h:1`,
  "PHP's curl": "GET /v1/investors HTTP/1.1|Host: h:1|Accept: */*",
  "PHP's streams": "GET /v1/investors HTTP/1.0|Host: h:1|Connection: close",
  k6: "GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: k6/0.50.0 (https://k6.io/)",
  ab: "GET /v1/investors HTTP/1.0|Host: h:1|User-Agent: ApacheBench/2.3|Accept: */*",
  "ab -k": `GET /v1/investors?pageSize=9 HTTP/1.0|Connection: Keep-Alive|Host: h:1|
    User-Agent: ApacheBench/2.3|Accept: */*`,
  hey: `GET /v1/investors HTTP/1.1|Host: h:1|User-Agent: hey/0.0.1|Content-Type: text/html|
    Accept-Encoding: gzip`,
  Chrome: `GET / HTTP/1.1|Host: h:1|Connection: keep-alive|Cache-Control: max-age=0|
    sec-ch-ua: "Chromium";v="124"|Upgrade-Insecure-Requests: 1|Sec-Fetch-Site: none|
    Sec-Fetch-Mode: navigate|Sec-Fetch-User: ?1|Sec-Fetch-Dest: document|
    Accept-Encoding: gzip, deflate, br, zstd|Cookie: session=1`,
  "kube-probe": `GET /readyz HTTP/1.1|Host: h:1|User-Agent: kube-probe/1.29|Accept: */*|
    Connection: close`,
  Prometheus: `GET /metrics HTTP/1.1|Host: h:1|User-Agent: Prometheus/2.51.0|
    Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1|Accept-Encoding: gzip|
    X-Prometheus-Scrape-Timeout-Seconds: 10`,
  "the check of a load balancer": `GET /healthz HTTP/1.1|Host: 10.0.0.7:8080|Connection: close|
    User-Agent: ELB-HealthChecker/2.0|Accept-Encoding: gzip, compressed`,
  "the check of HAProxy": "GET /readyz HTTP/1.0",
  nginx: `GET /v1/investors HTTP/1.0|Host: h:1|X-Real-IP: 10.0.0.7|X-Forwarded-For: 10.0.0.7|
    X-Forwarded-Proto: https|Connection: close`,
  Envoy: `GET /v1/investors HTTP/1.1|host: h:1|x-forwarded-proto: https|
    x-request-id: 7ab48a5c|x-envoy-expected-rq-timeout-ms: 15000`,
};

/** A request of the table above as bytes. */
function toBytes(text: string): string {
  const bytes = text.replaceAll(/\|\n? */g, "\r\n");
  return bytes.includes("\r\n\r\n") ? bytes : `${bytes}\r\n\r\n`;
}

const anyHost = { "--host": "0.0.0.0", "--allow-insecure": "true" };

describe("the connection of a client", () => {
  it.each(Object.entries(clients))(
    "stays if a bare Node.js server keeps it: %s",
    async (_, text) => {
      const { httpPort } = await startInProcess(anyHost);
      const request = toBytes(text);
      const { isOpen, statuses } = await sendTwice(httpPort, request);
      expect(isOpen).toBe((await sendTwice(await startBareServer(), request)).isOpen);
      const expected = request.startsWith("POST") ? 400 : 200;
      expect(new Set(statuses)).toEqual(new Set([expected]));
    },
  );

  it.skipIf(!hasTool("curl", ["--version"]))(
    "stays for the next call of curl --http2",
    async () => {
      const { httpPort } = await startInProcess();
      const url = `http://localhost:${httpPort}/v1/investors`;
      const args = ["-s", "--http2", "-w", " %{http_code} %{num_connects} ", url, url];
      expect((await promisify(execFile)("curl", args)).stdout).toBe("[] 200 1 [] 200 0 ");
    },
  );

  const get = (path: string, headers = {}) => http1("GET", path, headers);
  it.each<[string, number, string]>([
    ...["TRACE", "PATCH", "DELETE", "PROPFIND"].map((method): [string, number, string] => [
      `the method ${method}`,
      405,
      http1(method, "/v1/investors", {}),
    ]),
    ["the method HEAD", 200, http1("HEAD", "/v1/investors", {})],
    ["the method OPTIONS", 405, http1("OPTIONS", "*", {}).replace("*", "/v1/investors")],
    ["a record that is not there", 404, get("/v1/investors/0197a6e1-1111-7000-8000-000000000000")],
    ["a path of nothing", 404, get("/nothing")],
    ["a body that is not JSON", 400, http1("POST", "/v1/investors", json, "{")],
    ["a body of another type", 415, http1("POST", "/v1/investors", {}, "x")],
    ["Upgrade: websocket", 200, get("/healthz", { connection: "Upgrade", upgrade: "websocket" })],
    ["an unknown expectation", 200, get("/healthz", { expect: "more" })],
    ["TE and trailers", 200, get("/healthz", { te: "trailers", connection: "TE", trailer: "x" })],
    [
      "Range and If-None-Match",
      200,
      get("/openapi.json", { range: "bytes=0-1", "if-none-match": "x" }),
    ],
    ["a GET with a body", 200, http1("GET", "/v1/investors", json, "{}")],
  ])("stays after %s, with status %i", async (_, status, request) => {
    const { httpPort } = await startInProcess();
    const { isOpen, statuses } = await sendTwice(httpPort, request);
    expect({ isOpen, statuses }).toEqual({ isOpen: true, statuses: [status, status] });
  });

  it("carries requests in chunks, sent without waiting for replies, in their order", async () => {
    const { httpPort } = await startInProcess();
    const chunks = `${Buffer.byteLength(record).toString(16)}\r\n${record}\r\n0\r\n\r\n`;
    const isChunked = { "content-length": undefined, "transfer-encoding": "chunked" };
    const chunked = http1("POST", rpc, { ...json, ...isChunked }) + chunks;
    const missing = http1("GET", "/nothing", {});
    const { received } = openWire(httpPort, chunked + missing + chunked + alive);
    await expect.poll(() => statusesIn(received())).toEqual([200, 404, 200, 200]);
  });

  it("gives back its slots when it ends in a CONNECT, though Node.js takes it away", async () => {
    const service = await startService();
    const release = lockDatabase(service);
    for (let i = 0; i < 3; i += 1) {
      const { closed } = openWire(
        service.httpPort,
        `${create.repeat(3)}CONNECT x HTTP/1.1\r\nhost: x\r\n\r\n`,
      );
      await closed;
    }
    release();
    const inFlight = () => metric(service, "investor_records_rpc_server_calls_in_flight");
    await expect.poll(inFlight).toBe(0);
  });

  it("is closed after a refusal if its client waits to be asked for the body", async () => {
    const { httpPort } = await startInProcess();
    const head = http1("POST", "/nothing", { expect: "100-continue", "content-length": 9 });
    const text = await openWire(httpPort, head).closed;
    expect(statusesIn(text)).toEqual([404]);
  });

  // What comes later than a tenth of a second is too late, and a busy machine may take longer.
  it("is served with what is on its way at a shutdown", { retry: 2 }, async () => {
    const service = await startService();
    const [head, body] = create.split("\r\n\r\n");
    const { socket, closed } = openWire(service.httpPort, `${head}\r\n`);
    await delay(200);
    service.child.kill("SIGTERM");
    await untilWritten(service, "shutting down");
    await delay(20);
    socket.write(`\r\n${body}`);
    expect(await closed).toMatch(/^HTTP\/1.1 200 [\s\S]*connection: close/i);
    expect(await service.exited).toBe(0);
  });
});

describe("a request that is not well-formed", () => {
  const rest = "content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

  it.each([
    ["no HTTP", "nonsense\r\n\r\n"],
    ["a Host that opens a bracket", `POST ${rpc} HTTP/1.1\r\nhost: [\r\n${rest}`],
    ["a Host of two words", `POST ${rpc}?a HTTP/1.1\r\nhost: a b\r\n${rest}`],
    ["no Host by HTTP/1.0", `POST ${rpc} HTTP/1.0\r\n${rest}`],
    ["no Host by HTTP/1.1", `POST ${rpc} HTTP/1.1\r\n${rest}`],
    ["a target without a host", "GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n"],
    ["escapes that are none", "GET //?%zz HTTP/1.1\r\nhost: localhost\r\n\r\n"],
    ["headers of 20 KiB", `GET / HTTP/1.1\r\nhost: localhost\r\nx: ${"x".repeat(20_000)}\r\n\r\n`],
    ["two lengths", `POST ${rpc} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n${rest}`],
  ])("is refused with a status of its own, and ends nothing else: %s", async (_, request) => {
    const { httpPort, errors } = await startInProcess();
    const { received } = openWire(httpPort, request);
    await expect.poll(received).toMatch(/^HTTP\/1\.1 4\d\d /);
    await expect.poll(openWire(httpPort, alive).received).toContain("alive");
    expect(errors).toEqual([]);
  });

  it.each([["application/json"], ["application/json; charset=utf-8"], ["application/grpc-web"]])(
    "is refused where any host is allowed, too: %s to the Host [",
    async (type) => {
      const { httpPort, errors } = await startInProcess(anyHost);
      const request = http1("POST", rpc, { host: "[", "content-type": type }, "{}");
      await expect.poll(openWire(httpPort, request).received).toMatch(/^HTTP\/1\.1 400 /);
      await expect.poll(openWire(httpPort, alive).received).toContain("alive");
      expect(errors).toEqual([]);
    },
  );

  it("closes the connection on the port for gRPC, which takes HTTP/2 alone", async () => {
    const { grpcPort, errors } = await startInProcess();
    for (const request of [alive, "PRI * HTTP/1.1\r\n\r\n", http1("POST", rpc, json, "{}")]) {
      await openWire(grpcPort, request).closed;
    }
    expect(errors).toEqual([]);
  });
});
