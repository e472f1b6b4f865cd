import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { InvestorService, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { temporaryFolder } from "../support/folder.ts";
import { breakDatabase, lockDatabase, type Service, startService } from "../support/service.ts";

const secret = "S3CRET";
const token = `${secret}-token-without-a-name`;

/** A valid request, all of whose text is recognisable. */
const request = {
  type: InvestorType.INDIVIDUAL,
  firstName: `${secret}-1`,
  middleName: `${secret}-2`,
  lastName: `${secret}-3`,
  addressLine1: `${secret}-4`,
  addressLine2: `${secret}-5`,
  city: `${secret}-6`,
  state: `${secret}-7`,
  zipCode: `${secret}-8`,
  country: "gb",
  language: "en",
};
const json = JSON.stringify({ ...request, type: "individual" });

const authorize: Interceptor = (next) => (req) => {
  if (!req.header.has("authorization")) req.header.set("authorization", `Bearer ${token}`);
  return next(req);
};

/** What a caller by RPC is told of a refusal. */
function toldBy(error: unknown): string {
  const { rawMessage, metadata, details } = ConnectError.from(error);
  const values = details.map((each) =>
    "value" in each ? Buffer.from(each.value as Uint8Array) : "",
  );
  return [rawMessage, ...[...metadata].flat(), ...values].join(" ");
}

/**
 * Makes good and bad calls by every protocol, and waits for all to end.
 *
 * @returns the replies to those that were refused, but for what names an unknown member or
 *   parameter
 */
async function callEverything(service: Service): Promise<string[]> {
  const http = {
    baseUrl: `http://127.0.0.1:${service.httpPort}`,
    httpVersion: "1.1" as const,
    interceptors: [authorize],
  };
  const grpc = { ...http, baseUrl: `http://127.0.0.1:${service.grpcPort}` };
  const { httpVersion: _, ...grpcOptions } = grpc;
  const clients = [
    createGrpcTransport(grpcOptions),
    createConnectTransport(http),
    createGrpcWebTransport(http),
  ].map((transport) => createClient(InvestorService, transport));
  const rpcs = clients.flatMap((client) => {
    const requestId = v7();
    return [
      client.createInvestor(request),
      client.createInvestor({ ...request, requestId }),
      client.createInvestor({ ...request, requestId, city: `${secret}-other` }),
      client.createInvestor({ ...request, country: secret, city: `${secret}\n` }),
      client.createInvestor({ ...request, requestId: secret }),
      client.createInvestor(request, { timeoutMs: 1 }),
      client.createInvestor(request, { headers: { authorization: `Bearer ${secret}-wrong` } }),
      client.createInvestor(request, { headers: { traceparent: secret, "user-agent": secret } }),
      client.getInvestor({ id: secret }),
      client.listInvestors({ pageToken: secret }),
    ];
  });
  const authorization = `Bearer ${token}`;
  const refused: string[] = [];
  const ask = async (path: string, init: RequestInit) => {
    const reply = await fetch(`${http.baseUrl}${path}`, init);
    const text = await reply.text();
    if (!reply.ok) refused.push([...[...reply.headers].flat(), text].join(" "));
  };
  const post = (path: string, body: string, headers = {}) =>
    ask(path, {
      method: "POST",
      headers: { "content-type": "application/json", authorization, ...headers },
      body,
    });
  const get = (path: string) => ask(path, { headers: { authorization } });
  const broken = json.slice(0, -1);
  await Promise.allSettled([
    ...rpcs.map((call) => call.catch((error) => void refused.push(toldBy(error)))),
    ...["/v1/investors", "/investor.v1.InvestorService/CreateInvestor"].flatMap((path) => [
      post(path, json),
      post(path, broken),
      post(path, json, { authorization: `Basic ${secret}` }),
      post(path, json, { "idempotency-key": secret }),
      post(path, json, { "content-type": secret, "content-encoding": secret }),
      post(path, secret.repeat(20_000)),
    ]),
    get(`/v1/investors/${secret}`),
    get("/v1/investors"),
    get(`/v1/investors?pageToken=${secret}`),
    get(`/${secret}`),
  ]);
  const withoutNames = [...refused];
  await Promise.allSettled(
    ["/v1/investors", "/investor.v1.InvestorService/CreateInvestor"].flatMap((path) => [
      post(path, `{"${secret}": 1}`),
      post(`${path}?${secret}=${secret}`, json),
    ]),
  );
  return withoutNames;
}

describe("what the service writes", () => {
  it("holds no personal data and no secret, whatever happens", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "tokens"), `${token}\n`);
    const settings = { AUTH_TOKENS_FILE: "tokens", LOG_LEVEL: "trace", REQUEST_TIMEOUT: "1s" };
    const service = await startService(settings, folder);
    const refused = await callEverything(service);
    const release = lockDatabase(service);
    refused.push(...(await callEverything(service)));
    release();
    breakDatabase(service);
    refused.push(...(await callEverything(service)));
    const metrics = await fetch(`http://127.0.0.1:${service.httpPort}/metrics`, {
      headers: { authorization: `Bearer ${token}` },
    });
    const text = await metrics.text();
    service.child.kill("SIGTERM");
    await service.exited;
    const written = service.output() + text;
    for (const [what, times] of [
      ["INVALID_ARGUMENT", 10],
      ["UNAUTHENTICATED", 4],
      ["INTERNAL", 10],
      ["investor_records_rpc_server_call_duration_seconds", 10],
    ] as const) {
      expect(written.split(what).length, what).toBeGreaterThan(times);
    }
    expect(written).not.toContain(secret);
    expect(refused.length).toBeGreaterThan(100);
    for (const reply of refused) expect(reply).not.toContain(secret);
    const digest = createHash("sha256").update(token).digest("hex");
    expect(written).toContain(`"principal":"token ${digest.slice(0, 8)}"`);
    expect(written).not.toContain(digest.slice(0, 9));
  });

  it("holds no password of a database that cannot be reached", async () => {
    const service = await startService({
      DATABASE_URL: `mongodb://user:${secret}@127.0.0.1:1/investors`,
      AUTH_TOKENS_FILE: "",
      LOG_LEVEL: "trace",
    });
    await callEverything(service);
    expect(service.output()).toContain("not ready");
    expect(service.output()).not.toContain(secret);
  });
});
