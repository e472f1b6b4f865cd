import { once } from "node:events";
import { chmodSync, writeFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { Health } from "../../gen/grpc/health/v1/health_pb.js";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { deriveId } from "../../src/service/ids.ts";
import { createSqliteStore } from "../../src/store/sqlite.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startIssuer } from "../support/issuer.ts";
import { aCreate, anInvestor } from "../support/records.ts";
import { lockDatabase, run, type Service, startService, waitFor } from "../support/service.ts";

const tokens = `
# Comments and empty lines do not count.
orders    t0ken-of-the-orders
reports   t0ken-of-reports investors:read
importer  t0ken-of-importer investors:write

t0ken-without-a-name
`;

const authorize =
  (authorization: string | undefined): Interceptor =>
  (next) =>
  (req) => {
    if (authorization !== undefined) req.header.set("authorization", authorization);
    return next(req);
  };

const base = ({ httpPort }: Service) => `http://127.0.0.1:${httpPort}`;

/** Starts a service that knows the tokens above. */
async function startWithTokens(
  env: NodeJS.ProcessEnv = {},
  folder = temporaryFolder(),
): Promise<Service> {
  writeFileSync(join(folder, "tokens"), tokens);
  return startService({ AUTH_TOKENS_FILE: "tokens", ...env }, folder);
}

/** A client of a service by gRPC, which shows an authorization header. */
function clientOf(service: Service, authorization: string): Client<typeof InvestorService> {
  const baseUrl = `http://127.0.0.1:${service.grpcPort}`;
  const transport = createGrpcTransport({ baseUrl, interceptors: [authorize(authorization)] });
  return createClient(InvestorService, transport);
}

/** Clients of a service by every RPC protocol, which show an authorization header. */
function clientsOf(
  service: Service,
  authorization?: string,
): [string, Client<typeof InvestorService>][] {
  const interceptors = [authorize(authorization)];
  const http = { baseUrl: base(service), httpVersion: "1.1" as const, interceptors };
  const grpc = { baseUrl: `http://127.0.0.1:${service.grpcPort}`, interceptors };
  return [
    ["gRPC", createClient(InvestorService, createGrpcTransport(grpc))],
    ["Connect", createClient(InvestorService, createConnectTransport(http))],
    [
      "Connect by GET",
      createClient(InvestorService, createConnectTransport({ ...http, useHttpGet: true })),
    ],
    ["gRPC-Web", createClient(InvestorService, createGrpcWebTransport(http))],
  ];
}

const rest = (service: Service, authorization?: string, path = "/v1/investors") =>
  fetch(base(service) + path, { headers: authorization === undefined ? {} : { authorization } });

describe("bearer tokens from a file", () => {
  it("let their holders in, whichever way they come", async () => {
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
    ["an empty token", "Bearer ", "the header has no bearer token"],
    ["another scheme", "Basic dXNlcjpwYXNz", "the header has no bearer token"],
    ["the name of a token", "Bearer orders", "the tokens file has no such token"],
  ])("refuse a call with %s, and log why", async (_, authorization, cause) => {
    const service = await startWithTokens();
    const reason = cause === undefined ? "CREDENTIALS_MISSING" : "CREDENTIALS_INVALID";
    const realm = 'Bearer realm="investor-records"';
    const challenge = cause === undefined ? realm : `${realm}, error="invalid_token"`;
    for (const [protocol, client] of clientsOf(service, authorization)) {
      const failure = await failureOf(client.listInvestors({}));
      expect(failure, protocol).toMatchObject({ code: "Unauthenticated", reason });
    }
    const answer = await rest(service, authorization);
    expect(answer.status).toBe(401);
    expect(answer.headers.get("www-authenticate")).toBe(challenge);
    expect(await answer.json()).toMatchObject({ reason, status: 401 });
    const lines = () =>
      service
        .output()
        .split("\n")
        .filter((line) => line.includes("refused"));
    await expect.poll(() => lines().length).toBeGreaterThanOrEqual(4);
    for (const line of lines())
      expect(JSON.parse(line)).toMatchObject({ reason, ...(cause && { cause }) });
  });

  it("allow what their scopes name, and no more", async () => {
    const service = await startWithTokens();
    for (const [protocol, client] of clientsOf(service, "Bearer t0ken-of-reports")) {
      await client.listInvestors({});
      const failure = await failureOf(client.createInvestor(aCreate()));
      expect(failure, protocol).toMatchObject({
        code: "PermissionDenied",
        reason: "SCOPE_MISSING",
      });
      expect(failure.message).toContain("investors:write");
    }
    for (const [, client] of clientsOf(service, "Bearer t0ken-of-importer")) {
      const { id } = await client.createInvestor(aCreate());
      expect((await failureOf(client.getInvestor({ id }))).reason).toBe("SCOPE_MISSING");
    }
    const answer = await rest(service, "Bearer t0ken-of-importer");
    expect(answer.status).toBe(403);
    expect(answer.headers.get("www-authenticate")).toContain('scope="investors:read"');
  });

  it("are asked for before a byte of the body is read", async () => {
    const service = await startWithTokens();
    for (const path of ["/investor.v1.InvestorService/CreateInvestor", "/v1/investors"]) {
      const socket = connect(service.httpPort, "127.0.0.1");
      onTestFinished(() => void socket.destroy());
      const answer = replyOf(socket);
      socket.write(
        `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n`,
      );
      expect(await answer, path).toMatch(/^HTTP\/1\.1 401/);
    }
  });

  it("leave open what tells of the state and the contract, and close the metrics", async () => {
    const service = await startWithTokens();
    for (const path of ["/healthz", "/readyz", "/openapi.json"]) {
      expect((await rest(service, undefined, path)).status, path).toBe(200);
    }
    const health = createClient(
      Health,
      createGrpcTransport({ baseUrl: `http://127.0.0.1:${service.grpcPort}` }),
    );
    await health.check({});
    const refused = await rest(service, undefined, "/metrics");
    expect(refused.status).toBe(401);
    expect(refused.headers.get("www-authenticate")).toContain("Bearer");
    expect((await rest(service, "Bearer t0ken-of-importer", "/metrics")).status).toBe(200);
  });

  it("keep the records of one caller's request ids apart from another's", async () => {
    const service = await startWithTokens();
    const request = aCreate({ requestId: "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d" });
    // Under "token orders" and so on; other ids would make a second record of a replay.
    for (const [token, id] of [
      ["t0ken-of-the-orders", "4647f65f-a843-8f02-87bb-fd558df04dd7"],
      ["t0ken-of-importer", "2437b7e8-1d93-8e7e-bc44-fa542a08884b"],
      ["t0ken-without-a-name", "5cb93e91-b7a9-82d2-87d3-b05fb673a48a"],
      ["t0ken-of-the-orders", "4647f65f-a843-8f02-87bb-fd558df04dd7"],
    ]) {
      const created = await clientOf(service, `Bearer ${token}`).createInvestor(request);
      expect(created.id, token).toBe(id);
    }
  });

  it("are read again on SIGHUP without dropping a call; a wrong file changes nothing", async () => {
    const service = await startWithTokens();
    const client = clientOf(service, "Bearer t0ken-of-the-orders");
    await client.listInvestors({});
    const file = join(service.folder, "tokens");
    let isDone = false;
    const calls = (async () => {
      let count = 0;
      for (; !isDone; count += 1) await client.createInvestor(aCreate());
      return count;
    })();
    writeFileSync(file, "orders t0ken-of-the-orders\norders t0ken-that-comes-next\n");
    service.child.kill("SIGHUP");
    await expect
      .poll(async () => (await rest(service, "Bearer t0ken-that-comes-next")).status)
      .toBe(200);
    await expect.poll(() => service.output()).toContain('"reloaded tokens"');
    expect((await rest(service, "Bearer t0ken-of-reports")).status).toBe(401);
    writeFileSync(file, "orders t0ken-of-the-orders investors:everything\n");
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain("line 1");
    expect((await rest(service, "Bearer t0ken-that-comes-next")).status).toBe(200);
    isDone = true;
    expect(await calls).toBeGreaterThan(0);
    expect(service.output()).not.toContain("t0ken");
  });

  it.each([
    ["is not there", undefined, "ENOENT"],
    ["is empty", "# nothing\n", "holds no token"],
    [
      "has an unknown scope",
      "a b123456789abcdef investors:read\nc d123456789abcdef investors:all\n",
      "line 2",
    ],
    ["has a token that no header can carry", "a tökén-tökén-tökén\n", "line 1"],
    [
      "names a scope where the token should be",
      "reports investors:read\n",
      "line 1: investors:read",
    ],
    ["has a scope for a token", "investors:write\n", "line 1: investors:write"],
    [
      "has a token of 15 characters",
      "a 0123456789abcde\n",
      "line 1: the token must have at least 16",
    ],
    ["has a short token alone", "0123456789abcde\n", "line 1: the token must have at least 16"],
    ["has a comma in a token", "a 0123456789,abcdef\n", "line 1"],
    ["has a comma in a token alone", "orders,0123456789abcdef\n", "line 1"],
    ["has a comma between name and token", "orders, 0123456789abcdef\n", "line 1"],
    ["has a token twice", "a 0123456789abcdef\n\nb 0123456789abcdef\n", "line 3"],
  ])("stop the start if the file %s", async (_, text, named) => {
    const folder = temporaryFolder();
    if (text !== undefined) writeFileSync(join(folder, "tokens"), text);
    const { exited, output } = run(["--auth-tokens-file", "tokens"], {}, folder);
    expect(await exited).toBe(2);
    expect(output()).toContain("--auth-tokens-file tokens");
    expect(output()).toContain(named);
    expect(output()).not.toContain("0123456789");
    expect(output().trim().split("\n")).toHaveLength(1);
  });

  it("are warned of if others than the owner and its group may read the file", async () => {
    for (const [mode, isWarned] of [
      [0o600, false],
      [0o640, false],
      [0o620, true],
      [0o604, true],
    ] as const) {
      const folder = temporaryFolder();
      writeFileSync(join(folder, "tokens"), tokens);
      chmodSync(join(folder, "tokens"), mode);
      const service = await startService({ AUTH_TOKENS_FILE: "tokens" }, folder);
      expect(
        service.output().includes("tokens can be written by its group, or is open to others"),
      ).toBe(isWarned);
    }
  });
});

describe("OIDC access tokens", () => {
  const start = async (env: NodeJS.ProcessEnv = {}) => {
    const issuer = await startIssuer();
    const oidc = { OIDC_ISSUER: issuer.url, OIDC_AUDIENCE: "investors" };
    return { issuer, service: await startService({ ...oidc, ...env }) };
  };
  const both = "openid investors:read investors:write";

  it("let their holders do what their scope says", async () => {
    const { issuer, service } = await start();
    for (const [, client] of clientsOf(service, `Bearer ${await issuer.sign({ scope: both })}`)) {
      await client.createInvestor(aCreate());
    }
    const reader = await issuer.sign({ scope: "investors:read" });
    for (const [, client] of clientsOf(service, `Bearer ${reader}`)) {
      await client.listInvestors({});
      expect((await failureOf(client.createInvestor(aCreate()))).reason).toBe("SCOPE_MISSING");
    }
    const none = await rest(service, `Bearer ${await issuer.sign()}`);
    expect(none.status).toBe(403);
    expect(issuer.keyRequests()).toBe(1);
  });

  it("give the records of request ids the ids of their issuer and subject", async () => {
    const { issuer, service } = await start();
    const requestId = v7();
    const client = clientOf(service, `Bearer ${await issuer.sign({ scope: both })}`);
    const { id } = await client.createInvestor(aCreate({ requestId }));
    expect(id).toBe(deriveId(`oidc ${issuer.url} backend`, requestId));
  });

  it("are refused if they are not for this service, or no longer", async () => {
    const { issuer, service } = await start();
    const other = await startIssuer();
    const now = Math.floor(Date.now() / 1_000);
    const header = (alg: string) => Buffer.from(JSON.stringify({ alg })).toString("base64url");
    const good = await issuer.sign({ scope: both });
    const [, payload, signature] = good.split(".");
    for (const [why, token] of [
      ["expired", await issuer.sign({ scope: both, exp: now - 60 })],
      ["not valid yet", await issuer.sign({ scope: both, nbf: now + 600 })],
      ["for another audience", await issuer.sign({ scope: both, aud: "orders" })],
      ["without an audience", await issuer.sign({ scope: both, aud: undefined })],
      ["without an expiry", await issuer.sign({ scope: both, exp: undefined })],
      ["without a subject", await issuer.sign({ scope: both, sub: undefined })],
      ["of another issuer", await other.sign({ scope: both })],
      ["signed by another key", await other.sign({ scope: both, iss: issuer.url })],
      ["not signed", `${header("none")}.${payload}.`],
      ["signed with a public key", `${header("HS256")}.${payload}.${signature}`],
      ["no token", "a.b.c"],
    ] as const) {
      const answer = await rest(service, `Bearer ${token}`);
      expect(answer.status, why).toBe(401);
      expect(await answer.json(), why).toMatchObject({ reason: "CREDENTIALS_INVALID" });
    }
    expect((await rest(service, `Bearer ${good}`)).status).toBe(200);
  });

  it("are checked with the issuer's new keys once it has changed them", async () => {
    const { issuer, service } = await start();
    const before = await issuer.sign({ scope: both });
    expect((await rest(service, `Bearer ${before}`)).status).toBe(200);
    await issuer.rotate();
    const after = await issuer.sign({ scope: both });
    await expect
      .poll(async () => (await rest(service, `Bearer ${after}`)).status, { timeout: 5_000 })
      .toBe(200);
  });

  it("are UNAVAILABLE while the issuer is, and do not flood it", async () => {
    const { issuer, service } = await start();
    issuer.setAvailable(false);
    const authorization = `Bearer ${await issuer.sign({ scope: both })}`;
    const answer = await rest(service, authorization);
    expect(answer.status).toBe(503);
    expect(answer.headers.get("retry-after")).toBe("1");
    expect(await answer.json()).toMatchObject({ reason: "ISSUER_UNAVAILABLE" });
    issuer.setAvailable(true);
    await expect
      .poll(async () => (await rest(service, authorization)).status, { timeout: 5_000 })
      .toBe(200);
    const unknown = await (await startIssuer()).sign({ iss: issuer.url });
    const forged = unknown.replace(/^[^.]*/, () =>
      Buffer.from(JSON.stringify({ alg: "ES256", kid: "unknown" })).toString("base64url"),
    );
    await Promise.all(Array.from({ length: 100 }, () => rest(service, `Bearer ${forged}`)));
    expect(issuer.keyRequests()).toBeLessThan(5);
  });

  it("work beside tokens from a file", async () => {
    const issuer = await startIssuer();
    const service = await startWithTokens({
      OIDC_ISSUER: issuer.url,
      OIDC_AUDIENCE: "investors",
    });
    expect((await rest(service, `Bearer ${await issuer.sign({ scope: both })}`)).status).toBe(200);
    expect((await rest(service, "Bearer t0ken-of-the-orders")).status).toBe(200);
    expect((await rest(service, "Bearer t0ken-of-nobody")).status).toBe(401);
  });
});

describe("while the issuer is slow, callers", () => {
  const scope = "investors:read investors:write";

  /** A service with tokens of both kinds, of which those of the issuer wait for its keys. */
  async function startSlow(env: NodeJS.ProcessEnv = {}) {
    const issuer = await startIssuer();
    const oidc = { OIDC_ISSUER: issuer.url, OIDC_AUDIENCE: "investors" };
    const service = await startWithTokens({ ...oidc, ...env });
    const release = issuer.hold();
    return { issuer, service, release, waiting: `Bearer ${await issuer.sign({ scope })}` };
  }
  const known = "Bearer t0ken-of-the-orders";

  it("who leave give back what they would have taken", async () => {
    const { service, release, waiting } = await startSlow();
    const left = Array.from({ length: 16 }, () => {
      const controller = new AbortController();
      const { signal } = controller;
      const call = fetch(`${base(service)}/v1/investors`, {
        headers: { authorization: waiting },
        signal,
      });
      setTimeout(() => controller.abort(), 500);
      return call.catch((error: Error) => error.name);
    });
    expect(new Set(await Promise.all(left))).toEqual(new Set(["AbortError"]));
    release();
    await delay(500);
    for (let i = 0; i < 10; i += 1) expect((await rest(service, known)).status).toBe(200);
  });

  it("are let finish by a shutdown", async () => {
    const { issuer, service, release, waiting } = await startSlow();
    const call = rest(service, waiting);
    await expect.poll(() => issuer.requestsHeld()).toBe(1);
    service.child.kill("SIGTERM");
    await waitFor(async () => service.output().includes("shutting down"));
    await delay(200);
    release();
    expect((await call).status).toBe(200);
    expect(await service.exited).toBe(0);
  });

  it("are not cut by the age of their connection", async () => {
    const { service, release, waiting } = await startSlow({
      MAX_CONNECTION_AGE: "2s",
      REQUEST_TIMEOUT: "4s",
    });
    const agent = new Agent({ keepAlive: true });
    onTestFinished(() => agent.destroy());
    const get = async (path: string, headers = {}) => {
      const [res] = await once(
        request(`${base(service)}${path}`, { agent, headers }).end(),
        "response",
      );
      await once(res.resume(), "end");
      return res.statusCode;
    };
    expect(await get("/healthz")).toBe(200);
    // Behind its age, the connection is closed after one more request timeout.
    await delay(4_500);
    const call = get("/v1/investors", { authorization: waiting });
    await delay(2_700);
    release();
    expect(await call).toBe(200);
  });

  it("are told of their deadline when it passes", async () => {
    const { service, waiting } = await startSlow({ REQUEST_TIMEOUT: "500ms" });
    const start = performance.now();
    expect((await rest(service, waiting)).status).toBe(504);
    expect(performance.now() - start).toBeLessThan(3_000);
  });

  it("who leave have nothing stored", async () => {
    const { service, release, waiting } = await startSlow();
    const left = clientsOf(service, waiting).flatMap(([, client]) => {
      const signal = AbortSignal.timeout(500);
      return Array.from({ length: 5 }, () =>
        failureOf(client.createInvestor(aCreate(), { signal })),
      );
    });
    await Promise.all(left);
    await delay(200);
    release();
    await delay(500);
    expect(await (await rest(service, known)).json()).toEqual([]);
  });

  it("who wait for it hold no slot of those who do not", async () => {
    const { service, release, waiting } = await startSlow({ MAX_IN_FLIGHT: "10" });
    const clients = clientsOf(service, waiting);
    let refused = 0;
    const outcomes = Array.from({ length: 400 }, (_, i) =>
      clients[i % 4]?.[1].listInvestors({}).then(
        () => "served",
        async (error) => {
          const { reason } = await failureOf(Promise.reject(error));
          if (reason === "OVERLOADED") refused += 1;
          return reason;
        },
      ),
    );
    // While 256 are being checked.
    await expect.poll(() => refused).toBeGreaterThanOrEqual(400 - 256);
    for (const [, client] of clientsOf(service, known)) await client.createInvestor(aCreate());
    release();
    const ends = new Set(await Promise.all(outcomes));
    // The issuer is not waited for longer than five seconds.
    expect(["served", "OVERLOADED", "ISSUER_UNAVAILABLE"]).toEqual(
      expect.arrayContaining([...ends]),
    );
    await clientOf(service, known).createInvestor(aCreate());
  });
});

describe("a greedy caller", () => {
  const orders = "Bearer t0ken-of-the-orders";
  const importer = "Bearer t0ken-of-importer";

  it.each([
    ["1", 1],
    ["8", 7],
    ["20", 18],
  ])("has, of %s slots, at most %i", async (maxInFlight, share) => {
    const service = await startWithTokens({ MAX_IN_FLIGHT: maxInFlight, REQUEST_TIMEOUT: "8s" });
    const clients = clientsOf(service, orders).map(([, client]) => client);
    for (const client of clients) await client.listInvestors({});
    const release = lockDatabase(service);
    let refused = 0;
    const calls = Array.from({ length: 40 }, async (_, i) => {
      const call = clients[i % 4]?.createInvestor(aCreate()) ?? Promise.resolve();
      const outcome = await failureOf(call).catch(() => "stored");
      if (outcome !== "stored") refused += 1;
      return typeof outcome === "string" ? outcome : outcome.reason;
    });
    await expect.poll(() => refused, { timeout: 4_000 }).toBe(40 - share);
    const other = clientOf(service, importer)
      .createInvestor(aCreate())
      .then(
        () => "stored",
        () => "refused",
      );
    await delay(200);
    release();
    const outcomes = await Promise.all(calls);
    expect(outcomes.filter((each) => each === "stored")).toHaveLength(share);
    expect(outcomes.filter((each) => each === "OVERLOADED")).toHaveLength(40 - share);
    expect(await other).toBe(Number(maxInFlight) > share ? "stored" : "refused");
    // All of them are free again.
    const after = Array.from({ length: share }, () => clientOf(service, orders).listInvestors({}));
    expect((await Promise.all(after)).length).toBe(share);
  });

  it("reads at most six of the eight whole lists", async () => {
    const folder = temporaryFolder();
    const store = await createSqliteStore(join(folder, "data/investors.db"), {
      observe() {},
      onWrite() {},
      onWarning() {},
      onFatal() {},
    });
    const lastName = "😀".repeat(256);
    const { signal } = new AbortController();
    const large = { lastName, firstName: lastName, city: lastName, addressLine1: lastName };
    await Promise.all(Array.from({ length: 5_000 }, () => store.insert(anInvestor(large), signal)));
    await store.close();
    const service = await startWithTokens({}, folder);
    const read = async (token: string) => {
      const socket = connect(service.httpPort, "127.0.0.1");
      onTestFinished(() => void socket.destroy());
      socket.write(
        `GET /v1/investors HTTP/1.1\r\nhost: localhost\r\nauthorization: ${token}\r\n\r\n`,
      );
      const answer = await replyOf(socket);
      socket.pause();
      return answer.slice(9, 12);
    };
    const statuses: string[] = [];
    for (let i = 0; i < 8; i += 1) statuses.push(await read(orders));
    expect(statuses).toEqual(["200", "200", "200", "200", "200", "200", "503", "503"]);
    expect(await read("Bearer t0ken-of-reports")).toBe("200");
  });
});

async function replyOf(socket: Socket): Promise<string> {
  const [data] = await once(socket, "data");
  return String(data);
}
