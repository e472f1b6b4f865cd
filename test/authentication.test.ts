import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { Health } from "../gen/grpc/health/v1/health_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { readTokensFile } from "../src/auth/tokens-file.ts";
import { ConfigError } from "../src/config.ts";
import { deriveId } from "../src/service/ids.ts";
import { openSqlite } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { startIssuer } from "./support/issuer.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { lockDatabase, type Service, startService } from "./support/service.ts";
import { http1, openWire } from "./support/tcp.ts";

const tokens = `
# Comments and empty lines do not count.
orders    t0ken-of-the-orders
reports   t0ken-of-reports investors:read
importer  t0ken-of-importer investors:write
scraper   t0ken-of-scraper metrics

t0ken-without-a-name
`;

const orders = "Bearer t0ken-of-the-orders";
const reports = "Bearer t0ken-of-reports";
const importer = "Bearer t0ken-of-importer";
const scraper = "Bearer t0ken-of-scraper";

/** Starts a service that knows the tokens above. */
async function startWithTokens(
  env: NodeJS.ProcessEnv = {},
  folder = temporaryFolder(),
): Promise<Service> {
  writeFileSync(join(folder, "tokens"), tokens);
  return startService({ AUTH_TOKENS_FILE: "tokens", ...env }, folder);
}

type InvestorClient = Client<typeof InvestorService>;

/** Clients of a service by every RPC protocol, which show an authorization header. */
function clientsOf(service: Service, authorization?: string): [string, InvestorClient][] {
  const authorize: Interceptor = (next) => (req) => {
    if (authorization !== undefined) req.header.set("authorization", authorization);
    return next(req);
  };
  const interceptors = [authorize];
  const grpc = { baseUrl: `http://127.0.0.1:${service.grpcPort}`, interceptors };
  const http = { baseUrl: base(service), httpVersion: "1.1" as const, interceptors };
  return Object.entries({
    gRPC: createGrpcTransport(grpc),
    Connect: createConnectTransport(http),
    "Connect by GET": createConnectTransport({ ...http, useHttpGet: true }),
    "gRPC-Web": createGrpcWebTransport(http),
  }).map(([name, transport]) => [name, createClient(InvestorService, transport)]);
}

/** A client of a service by gRPC, which shows an authorization header. */
function clientOf(service: Service, authorization: string): InvestorClient {
  const [[, client] = []] = clientsOf(service, authorization);
  return client as InvestorClient;
}

const base = ({ httpPort }: Service) => `http://127.0.0.1:${httpPort}`;

const rest = (service: Service, authorization?: string, path = "/v1/investors") =>
  fetch(base(service) + path, { headers: authorization === undefined ? {} : { authorization } });

describe("bearer tokens", () => {
  it("let their holders in by every protocol", async () => {
    const service = await startWithTokens();
    for (const token of ["t0ken-of-the-orders", "t0ken-without-a-name"]) {
      for (const [protocol, client] of clientsOf(service, `Bearer ${token}`)) {
        const { id } = await client.createInvestor(aCreate());
        expect((await client.getInvestor({ id })).id, protocol).toBe(id);
      }
      expect((await rest(service, `bearer ${token}`)).status).toBe(200);
    }
  });

  it.each([
    ["no credentials", undefined, undefined],
    ["an unknown token", "Bearer t0ken-of-order", "the tokens file has no such token"],
    ["another scheme", "Basic dXNlcjpwYXNz", "the header has no bearer token"],
  ])("refuse a call with %s, and log why", async (_, authorization, cause) => {
    const service = await startWithTokens();
    const reason = cause === undefined ? "CREDENTIALS_MISSING" : "CREDENTIALS_INVALID";
    for (const [protocol, client] of clientsOf(service, authorization)) {
      const failure = await failureOf(client.listInvestors({}));
      expect(failure, protocol).toMatchObject({ code: "Unauthenticated", reason });
    }
    const reply = await rest(service, authorization);
    const realm = 'Bearer realm="investor-records"';
    expect(reply.status).toBe(401);
    expect(reply.headers.get("www-authenticate")).toBe(
      cause === undefined ? realm : `${realm}, error="invalid_token"`,
    );
    expect(await reply.json()).toMatchObject({ reason, status: 401 });
    const refusals = () => service.output().match(/^.*refused.*$/gm) ?? [];
    await expect.poll(() => refusals().length).toBeGreaterThanOrEqual(5);
    for (const line of refusals()) {
      expect(JSON.parse(line)).toMatchObject({ reason, ...(cause && { cause }) });
    }
  });

  it("allow what their scopes name, and no more", async () => {
    const service = await startWithTokens();
    await clientOf(service, reports).listInvestors({});
    await clientOf(service, importer).createInvestor(aCreate());
    for (const [authorization, refuses] of [
      [reports, ["investors:write"]],
      [importer, ["investors:read"]],
      [scraper, ["investors:read", "investors:write"]],
    ] as const) {
      const client = clientOf(service, authorization);
      for (const scope of refuses) {
        const isRead = scope === "investors:read";
        const call = isRead ? client.listInvestors({}) : client.createInvestor(aCreate());
        const failure = await failureOf(call);
        expect(failure).toMatchObject({ code: "PermissionDenied", reason: "SCOPE_MISSING" });
        expect(failure.message).toContain(scope);
      }
    }
    expect((await rest(service, scraper, "/metrics")).status).toBe(200);
    const reply = await rest(service, importer);
    expect(reply.status).toBe(403);
    expect(reply.headers.get("www-authenticate")).toContain('scope="investors:read"');
  });

  it("are asked for before a byte of the body is read", async () => {
    const { httpPort } = await startWithTokens();
    for (const path of ["/investor.v1.InvestorService/CreateInvestor", "/v1/investors"]) {
      const request = http1("POST", path, { "content-type": "application/json" }, "not sent");
      const { received } = openWire(httpPort, request.replace("not sent", ""));
      await expect.poll(received).toMatch(/^HTTP\/1\.1 401/);
    }
  });

  it("leave open what tells of the state and the contract, and close the metrics", async () => {
    const service = await startWithTokens();
    for (const path of ["/healthz", "/readyz", "/openapi.json"]) {
      expect((await rest(service, undefined, path)).status, path).toBe(200);
    }
    const baseUrl = `http://127.0.0.1:${service.grpcPort}`;
    await createClient(Health, createGrpcTransport({ baseUrl })).check({});
    const refused = await rest(service, undefined, "/metrics");
    expect(refused.status).toBe(401);
    expect(refused.headers.get("www-authenticate")).toContain("Bearer");
    expect((await rest(service, importer, "/metrics")).status).toBe(200);
  });

  it("keep the records of one caller's request ids apart from another's", async () => {
    const service = await startWithTokens();
    const request = aCreate({ requestId: "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d" });
    // Under "token orders" and so on; other ids would make a second record of a replay.
    for (const [authorization, id] of [
      [orders, "4647f65f-a843-8f02-87bb-fd558df04dd7"],
      [importer, "2437b7e8-1d93-8e7e-bc44-fa542a08884b"],
      ["Bearer t0ken-without-a-name", "5cb93e91-b7a9-82d2-87d3-b05fb673a48a"],
      [orders, "4647f65f-a843-8f02-87bb-fd558df04dd7"],
    ] as const) {
      const created = await clientOf(service, authorization).createInvestor(request);
      expect(created.id, authorization).toBe(id);
    }
  });

  it("are read again on SIGHUP without dropping a call", async () => {
    const service = await startWithTokens();
    const client = clientOf(service, orders);
    await client.listInvestors({});
    let isDone = false;
    const calls = (async () => {
      let count = 0;
      for (; !isDone; count += 1) await client.createInvestor(aCreate());
      return count;
    })();
    const next = "orders t0ken-of-the-orders\norders t0ken-that-comes-next\n";
    writeFileSync(join(service.folder, "tokens"), next);
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain('"reloaded tokens"');
    expect((await rest(service, "Bearer t0ken-that-comes-next")).status).toBe(200);
    expect((await rest(service, reports)).status).toBe(401);
    isDone = true;
    expect(await calls).toBeGreaterThan(0);
    expect(service.output()).not.toContain("t0ken");
  });
});

describe("a file of tokens", () => {
  const scopes = "investors:read investors:write";

  it.each([
    ["is not there", undefined, " cannot be read (ENOENT)"],
    ["is empty", "# nothing\n", " holds no token"],
    ["has an unknown scope", `a b123456789abcdef ${scopes}\nc d123456789abcdef x\n`, ", line 2: "],
    ["has a token that no header can carry", "a tökén-tökén-tökén\n", ", line 1: "],
    ["has a scope for a token", "reports investors:read\n", ", line 1: investors:read is a scope"],
    ["has a token of 15 characters", "a 0123456789abcde\n", ", line 1: the token must have at"],
    ["has a short token alone", "0123456789abcde\n", ", line 1: the token must have at least 16"],
    ["has a comma between name and token", "orders, 0123456789abcdef\n", ", line 1: "],
    ["has a token twice", "a 0123456789abcdef\n\nb 0123456789abcdef\n", ", line 3: "],
  ])("is refused if it %s, and nothing of it is repeated", async (_, text, fault) => {
    const file = join(temporaryFolder(), "tokens");
    if (text !== undefined) writeFileSync(file, text);
    const error = await readTokensFile(file, () => {}).catch((reason) => reason);
    expect(error).toBeInstanceOf(ConfigError);
    expect(error.message).toContain(`--auth-tokens-file ${file}${fault}`);
    expect(error.message).not.toMatch(/0123456789|tökén/);
  });

  it("warns if others than its owner may change it or read it", async () => {
    const file = join(temporaryFolder(), "tokens");
    writeFileSync(file, tokens);
    const warnings: string[] = [];
    for (const mode of [0o600, 0o640, 0o620, 0o604]) {
      chmodSync(file, mode);
      await readTokensFile(file, () => warnings.push(mode.toString(8)));
    }
    expect(warnings).toEqual(["620", "604"]);
  });
});

describe("OIDC access tokens", () => {
  const scope = "openid investors:read investors:write";

  async function start(env: NodeJS.ProcessEnv = {}) {
    const issuer = await startIssuer();
    const oidc = { OIDC_ISSUER: issuer.url, OIDC_AUDIENCE: "investors" };
    return { issuer, service: await startWithTokens({ ...oidc, ...env }) };
  }

  it("let their holders do what their scope says, beside tokens from a file", async () => {
    const { issuer, service } = await start();
    const client = clientOf(service, `Bearer ${await issuer.sign({ scope })}`);
    const requestId = v7();
    const { id } = await client.createInvestor(aCreate({ requestId }));
    expect(id).toBe(deriveId(`oidc ${issuer.url} backend`, requestId));
    const reader = clientOf(service, `Bearer ${await issuer.sign({ roles: "investors:read" })}`);
    await reader.listInvestors({});
    expect((await failureOf(reader.createInvestor(aCreate()))).reason).toBe("SCOPE_MISSING");
    expect((await rest(service, `Bearer ${await issuer.sign()}`)).status).toBe(403);
    expect((await rest(service, orders)).status).toBe(200);
    expect((await rest(service, "Bearer t0ken-of-nobody")).status).toBe(401);
    expect(issuer.keyRequests()).toBe(1);
  });

  describe("whose issuer is slow", () => {
    /** A service whose callers with a token of the issuer wait until its keys are released. */
    async function startSlow(env: NodeJS.ProcessEnv = {}) {
      const { issuer, service } = await start(env);
      const release = issuer.hold();
      return { issuer, service, release, waiting: `Bearer ${await issuer.sign({ scope })}` };
    }

    it("end with the deadline of the call", async () => {
      const { service, waiting } = await startSlow({ REQUEST_TIMEOUT: "500ms" });
      const start = performance.now();
      expect((await rest(service, waiting)).status).toBe(504);
      expect(performance.now() - start).toBeLessThan(3_000);
    });

    it("hold no slot of callers who do not wait for it", async () => {
      const { service, release, waiting } = await startSlow({ MAX_IN_FLIGHT: "10" });
      const clients = clientsOf(service, waiting);
      let refused = 0;
      const outcomes = Array.from({ length: 400 }, async (_, i) => {
        const call = clients[i % 4]?.[1].listInvestors({}).then(() => Promise.reject("served"));
        const outcome = await failureOf(call as Promise<never>);
        if (outcome.reason === "OVERLOADED") refused += 1;
        return outcome.reason ?? outcome.message;
      });
      // The other 256 are being checked.
      await expect.poll(() => refused).toBe(400 - 256);
      for (const [, client] of clientsOf(service, orders)) await client.createInvestor(aCreate());
      release();
      await Promise.all(outcomes);
      await clientOf(service, orders).createInvestor(aCreate());
    });
  });
});

describe("a greedy caller", () => {
  it("has at most seven of eight slots", async () => {
    const service = await startWithTokens({ MAX_IN_FLIGHT: "8", REQUEST_TIMEOUT: "8s" });
    const clients = clientsOf(service, orders).map(([, client]) => client);
    for (const client of clients) await client.listInvestors({});
    const release = lockDatabase(service);
    const refused: unknown[] = [];
    const calls = Array.from({ length: 40 }, async (_, i) => {
      const call = clients[i % 4]?.createInvestor(aCreate()) ?? Promise.reject();
      await call.catch(async () => refused.push((await failureOf(call)).reason));
    });
    await expect.poll(() => refused.length, { timeout: 4_000 }).toBe(33);
    const other = clientOf(service, importer).createInvestor(aCreate());
    await delay(200);
    release();
    await Promise.all([...calls, other]);
    expect(refused).toEqual(Array(33).fill("OVERLOADED"));
  });

  it("reads at most six of the eight whole lists", async () => {
    const folder = temporaryFolder();
    const store = await openSqlite(join(folder, "data/investors.db"));
    const text = "😀".repeat(256);
    const large = { lastName: text, firstName: text, city: text, addressLine1: text };
    await Promise.all(Array.from({ length: 5_000 }, () => store.insert(anInvestor(large))));
    await store.close();
    const { httpPort } = await startWithTokens({}, folder);
    const read = async (authorization: string) => {
      const { socket, received } = openWire(
        httpPort,
        http1("GET", "/v1/investors", { authorization }),
      );
      await expect.poll(received).not.toBe("");
      socket.pause();
      return received().slice(9, 12);
    };
    const statuses: string[] = [];
    for (let i = 0; i < 8; i += 1) statuses.push(await read(orders));
    expect(statuses).toEqual(["200", "200", "200", "200", "200", "200", "503", "503"]);
    expect(await read(reports)).toBe("200");
  });
});
