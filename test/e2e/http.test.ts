import { once } from "node:events";
import { type OutgoingHttpHeaders, request } from "node:http";
import { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { brotliCompressSync, gzipSync } from "node:zlib";
import { createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { failureOf } from "../support/errors.ts";
import { frame, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import {
  accepts,
  grpcClient,
  lockDatabase,
  type Service,
  startService,
  untilInFlight,
  waitFor,
} from "../support/service.ts";

const url = ({ httpPort }: Service, path = "") => `http://127.0.0.1:${httpPort}${path}`;
const rpc = (method: string) => `/investor.v1.InvestorService/${method}`;

/** Posts a body to a method as a browser does for Connect. */
const post = (
  service: Service,
  method: string,
  body: string | Uint8Array<ArrayBuffer>,
  headers = {},
) =>
  fetch(url(service, rpc(method)), {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body,
  });

const transports: [string, (baseUrl: string) => Transport][] = [true, false].flatMap(
  (useBinaryFormat): [string, (baseUrl: string) => Transport][] => {
    const codec = useBinaryFormat ? "proto" : "JSON";
    const options = (baseUrl: string) => ({
      baseUrl,
      httpVersion: "1.1" as const,
      useBinaryFormat,
    });
    return [
      [`Connect with ${codec}`, (baseUrl) => createConnectTransport(options(baseUrl))],
      [
        `Connect with ${codec} by GET`,
        (baseUrl) => createConnectTransport({ ...options(baseUrl), useHttpGet: true }),
      ],
      [`gRPC-Web with ${codec}`, (baseUrl) => createGrpcWebTransport(options(baseUrl))],
    ];
  },
);

describe.each(transports)("%s", (_, createTransport) => {
  it("creates, gets and lists what gRPC creates, gets and lists", async () => {
    const service = await startService();
    const client = createClient(InvestorService, createTransport(url(service)));
    const created = await client.createInvestor(aCreate({ requestId: v7() }));
    expect(await client.getInvestor({ id: created.id })).toEqual(created);
    expect(await grpcClient(service).getInvestor({ id: created.id })).toEqual(created);
    expect((await client.listInvestors({ pageSize: 5 })).investors).toEqual([created]);
  });

  it("tells every detail of an error", async () => {
    const service = await startService();
    const client = createClient(InvestorService, createTransport(url(service)));
    expect(await failureOf(client.createInvestor(aCreate({ country: "USA" })))).toMatchObject({
      code: "InvalidArgument",
      reason: "INVALID_FIELDS",
      violations: { country: "must be two or three lower-case letters (a-z)" },
    });
    expect(await failureOf(client.getInvestor({ id: v7() }))).toMatchObject({
      code: "NotFound",
      reason: "INVESTOR_NOT_FOUND",
    });
  });
});

describe("Connect over HTTP", () => {
  it("replies in JSON with every field, and says not to store it", async () => {
    const service = await startService();
    const { requestId: _, ...request } = aCreate({ middleName: "" });
    const body = JSON.stringify({ ...request, type: InvestorType[InvestorType.INDIVIDUAL] });
    const json = body.replace('"INDIVIDUAL"', '"INVESTOR_TYPE_INDIVIDUAL"');
    const answer = await post(service, "CreateInvestor", json);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("cache-control")).toBe("no-store");
    const record = (await answer.json()) as object;
    expect(record).toMatchObject({ middleName: "", type: "INVESTOR_TYPE_INDIVIDUAL" });
    expect(Object.keys(record)).toHaveLength(12);
    const list = await post(service, "ListInvestors", "{}");
    expect(await list.json()).toEqual({ investors: [record], nextPageToken: "" });
  });

  it.each([
    ["an unknown member", '{"requestID": "x"}', "requestID"],
    ["an unknown name of an enum", '{"type": "INVESTOR_TYPE_OTHER"}', "InvestorType"],
    ["no JSON", "{", ""],
    ["a list", "[]", ""],
  ])("refuses %s", async (_, body, named) => {
    const answer = await post(await startService(), "CreateInvestor", body);
    expect(answer.status).toBe(400);
    const { code, message } = (await answer.json()) as { code: string; message: string };
    expect(code).toBe("invalid_argument");
    expect(message).toContain(named);
  });

  it("takes gzip and brotli, and no body that unfolds to 50 MB", async () => {
    const service = await startService();
    for (const [encoding, pack] of [
      ["gzip", gzipSync],
      ["br", brotliCompressSync],
    ] as const) {
      const headers = { "content-encoding": encoding };
      const good = await post(service, "ListInvestors", new Uint8Array(pack("{}")), headers);
      expect(good.status).toBe(200);
      const bomb = pack(`{"pageToken":"${"a".repeat(50_000_000)}"}`);
      const bad = await post(service, "ListInvestors", new Uint8Array(bomb), headers);
      expect(await bad.json()).toMatchObject({ code: "resource_exhausted" });
    }
  });

  it("uses a connection again after a request that it did not read to the end", async () => {
    const service = await startService();
    const socket = new Socket().connect(service.httpPort, "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    let answers = "";
    socket.on("data", (data) => {
      answers += data;
    });
    const head = `POST ${rpc("ListInvestors")} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`;
    socket.write(`${head}transfer-encoding: chunked\r\n\r\n`);
    for (let i = 0; i < 20; i += 1) {
      socket.write(`2710\r\n${"a".repeat(10_000)}\r\n`);
      await delay(2);
    }
    socket.write("0\r\n\r\n");
    await expect.poll(() => answers).toContain("resource_exhausted");
    socket.write(`${head}content-length: 2\r\n\r\n{}`);
    await expect.poll(() => answers).toContain('{"investors":[]');
  });

  it("survives requests that are no HTTP, or whose Host is no name", async () => {
    const service = await startService();
    for (const request of [
      "nonsense\r\n\r\n",
      `POST ${rpc("ListInvestors")} HTTP/1.1\r\nhost: a b\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}`,
      `POST ${rpc("ListInvestors")} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}`,
      "GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n",
      "GET //?%zz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ]) {
      const socket = new Socket().connect(service.httpPort, "127.0.0.1");
      let answer = "";
      socket.on("data", (data) => {
        answer += data;
      });
      socket.end(request);
      await expect.poll(() => answer, { message: request }).toMatch(/^HTTP\/1\.1 4\d\d/);
    }
    expect((await fetch(url(service, "/healthz"))).status).toBe(200);
  });

  it("refuses calls past the limit", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "1" });
    await grpcClient(service).createInvestor(aCreate());
    const release = lockDatabase(service);
    const client = createClient(
      InvestorService,
      createConnectTransport({ baseUrl: url(service), httpVersion: "1.1" }),
    );
    const inFlight = client.createInvestor(aCreate());
    await untilInFlight(service, 1);
    expect(await failureOf(client.listInvestors({}))).toMatchObject({
      code: "Unavailable",
      reason: "OVERLOADED",
      hasRetryDelay: true,
    });
    const rest = await fetch(url(service, "/v1/investors"));
    expect(rest.status).toBe(503);
    expect(rest.headers.get("retry-after")).toBe("1");
    expect(await rest.json()).toMatchObject({ reason: "OVERLOADED" });
    release();
    await inFlight;
  });

  it("gives no slot to probes, the reference, health and reflection", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "1" });
    const client = grpcClient(service);
    await client.createInvestor(aCreate());
    const release = lockDatabase(service);
    const inFlight = client.createInvestor(aCreate());
    await untilInFlight(service, 1);
    expect((await failureOf(client.listInvestors({}))).reason).toBe("OVERLOADED");
    for (const path of ["/healthz", "/readyz", "/metrics", "/", "/openapi.json"]) {
      expect((await fetch(url(service, path))).status, path).toBe(200);
    }
    const session = rawConnection(service.grpcPort);
    const check = await rawCall(session, "/grpc.health.v1.Health/Check", frame(Buffer.alloc(0)));
    expect(check.status).toBe(0);
    for (const version of ["v1", "v1alpha"]) {
      const method = `/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`;
      const services = await rawCall(session, method, frame(Buffer.from([0x3a, 0])));
      expect(services.status, version).toBe(0);
      expect(services.body.toString("latin1"), version).toContain("investor.v1.InvestorService");
    }
    release();
    await inFlight;
  });
});

describe("a form of request that is not served", () => {
  it.each([
    ["GET", undefined, 405, "POST"],
    ["PUT", "application/json", 405, "POST"],
    ["POST", "application/x-www-form-urlencoded", 415, null],
    ["POST", "application/grpc-web-text", 415, null],
  ])("is refused with a reason: %s with %s", async (method, type, status, allow) => {
    const service = await startService();
    const answer = await fetch(url(service, rpc("CreateInvestor")), {
      method,
      headers: type === undefined ? {} : { "content-type": type },
      ...(method !== "GET" && { body: "{}" }),
    });
    expect({ status: answer.status, allow: answer.headers.get("allow") }).toEqual({
      status,
      allow,
    });
    const { detail } = (await answer.json()) as { detail: string };
    expect(detail).toMatch(status === 405 ? /POST/ : /Content-Type/);
  });
});

describe("CORS", () => {
  const preflight = (service: Service, origin: string) =>
    fetch(url(service, rpc("GetInvestor")), {
      method: "OPTIONS",
      headers: {
        origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "Content-Type,Idempotency-Key,traceparent",
      },
    });

  it("lets the pages of the named origins call, and no others", async () => {
    const service = await startService({ CORS_ORIGIN: "https://a.example,https://b.example" });
    const allowed = await preflight(service, "https://b.example");
    expect(allowed.status).toBe(204);
    expect(allowed.headers.get("access-control-allow-origin")).toBe("https://b.example");
    expect(allowed.headers.get("access-control-allow-headers")).toContain("Idempotency-Key");
    expect(allowed.headers.get("access-control-allow-headers")).toContain("traceparent");
    const refused = await preflight(service, "https://c.example");
    expect(refused.headers.get("access-control-allow-origin")).toBeNull();
    const headers = { origin: "https://a.example" };
    const answer = await fetch(url(service, "/v1/investors"), { headers });
    expect(answer.headers.get("access-control-allow-origin")).toBe("https://a.example");
    expect(answer.headers.get("vary")).toContain("Origin");
  });

  it("says nothing unless it is set", async () => {
    const service = await startService();
    const answer = await preflight(service, "https://a.example");
    expect(answer.headers.get("access-control-allow-origin")).toBeNull();
  });
});

describe("a service on this machine that asks for no credentials", () => {
  const status = async (service: Service, headers: OutgoingHttpHeaders, path = "/v1/investors") => {
    const req = request(url(service, path), { headers }).end();
    const [res] = await once(req, "response");
    res.resume();
    return res.statusCode;
  };

  it("replies only to the names of this machine", async () => {
    const service = await startService();
    for (const host of ["localhost", `127.0.0.1:${service.httpPort}`, "[::1]:80", "LOCALHOST:1"]) {
      expect(await status(service, { host }), host).toBe(200);
    }
    for (const host of ["evil.example", "localhost.evil.example", "10.0.0.1", "::1"]) {
      expect(await status(service, { host }), host).toBe(403);
      expect(await status(service, { host }, rpc("GetInvestor")), host).toBe(403);
    }
  });

  it("returns records by the address that it listens on", async () => {
    const { httpPort } = await startService({ HOST: "127.8.8.8" });
    for (const [host, expected] of [
      ["127.8.8.8", 200],
      [`127.8.8.8:${httpPort}`, 200],
      ["localhost", 200],
      ["127.8.8.9", 403],
    ] as const) {
      const to = { host: "127.8.8.8", port: httpPort, path: "/v1/investors", headers: { host } };
      const [res] = await once(request(to).end(), "response");
      res.resume();
      expect(res.statusCode, host).toBe(expected);
    }
  });

  it("takes the host of a target in absolute form for that of the request", async () => {
    const { httpPort: port } = await startService();
    for (const [target, host, expected] of [
      ["http://localhost/healthz", "localhost", 200],
      [`HTTP://127.0.0.1:${port}/v1/investors?pageSize=1`, "evil.example", 200],
      ["http://evil.example/healthz", "localhost", 403],
    ] as const) {
      const [res] = await once(
        request({ port, path: target, headers: { host } }).end(),
        "response",
      );
      res.resume();
      expect(res.statusCode, target).toBe(expected);
    }
  });

  it("refuses the pages of other sites unless their origin is named", async () => {
    const service = await startService({ CORS_ORIGIN: "https://a.example" });
    const own = `127.0.0.1:${service.httpPort}`;
    expect(await status(service, { origin: `http://${own}`, host: own })).toBe(200);
    expect(await status(service, { origin: "https://a.example" })).toBe(200);
    expect(await status(service, { "sec-fetch-site": "same-origin" })).toBe(200);
    for (const headers of [
      { origin: "https://evil.example" },
      { origin: "null" },
      { "sec-fetch-site": "cross-site" },
    ]) {
      expect(await status(service, headers), JSON.stringify(headers)).toBe(403);
    }
  });
});

describe("shutdown of the HTTP port", () => {
  it("says not ready first, then lets calls finish, and is not held up by idle connections", async () => {
    const service = await startService({ DRAIN_DELAY: "2s" });
    expect((await fetch(url(service, "/readyz"))).status).toBe(200);
    const idle = new Socket().connect(service.httpPort, "127.0.0.1");
    onTestFinished(() => void idle.destroy());
    const release = lockDatabase(service);
    const client = createClient(
      InvestorService,
      createConnectTransport({ baseUrl: url(service), httpVersion: "1.1" }),
    );
    const inFlight = Promise.all(
      Array.from({ length: 20 }, () => client.createInvestor(aCreate())),
    );
    await untilInFlight(service, 20);
    service.child.kill("SIGTERM");
    await expect.poll(async () => (await fetch(url(service, "/readyz"))).status).toBe(503);
    await waitFor(async () => !(await accepts(service.httpPort)));
    release();
    expect(await inFlight).toHaveLength(20);
    expect(await service.exited).toBe(0);
  });
});
