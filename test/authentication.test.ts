/** Who may call, and what they may do. */
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { readTokens } from "../src/auth/tokens-file.ts";
import { deriveId } from "../src/investor/ids.ts";
import { type Address, clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { type Issuer, startIssuer } from "./support/issuer.ts";
import { messages, paths, rawCall, rawConnection, untilArrived } from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask, waitFor } from "./support/service.ts";
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
const nameless = "Bearer t0ken-without-a-name";

/** Starts a service that knows the tokens above. */
async function startWithTokens(flags: Record<string, string> = {}) {
  const file = temporaryFile(tokens);
  return { file, ...(await startInProcess({ "--auth-tokens-file": file, ...flags })) };
}

const clientOf = (ports: Address, authorization: string) =>
  clientsOf(ports, { authorization }).gRPC;

const rest = (ports: Address, authorization?: string, path = "/v1/investors") =>
  ask(ports, path, authorization === undefined ? {} : { headers: { authorization } });

describe("bearer tokens", () => {
  it("let their holders in by every protocol", async () => {
    const service = await startWithTokens();
    for (const authorization of [orders, nameless]) {
      const clients = clientsOf(service, { authorization });
      for (const [protocol, client] of Object.entries(clients)) {
        const { id } = await client.createInvestor(aCreate());
        expect((await client.getInvestor({ id })).id, protocol).toBe(id);
      }
      expect((await rest(service, authorization.replace("B", "b"))).status).toBe(200);
    }
  });

  it.each([
    ["no credentials", undefined, undefined],
    ["an unknown token", "Bearer t0ken-of-order", "the tokens file has no such token"],
    ["another scheme", "Basic dXNlcjpwYXNz", "the header has no bearer token"],
  ])("refuse a call with %s, and log why", async (_, authorization, cause) => {
    const service = await startWithTokens();
    const [reason, challenge] = cause
      ? ["CREDENTIALS_INVALID", 'Bearer realm="investor-records", error="invalid_token"']
      : ["CREDENTIALS_MISSING", 'Bearer realm="investor-records"'];
    for (const [protocol, client] of Object.entries(clientsOf(service, { authorization }))) {
      const failure = await failureOf(client.listInvestors({}));
      expect(failure, protocol).toMatchObject({ code: "Unauthenticated", reason });
    }
    const reply = await rest(service, authorization);
    expect(await reply.json()).toMatchObject({ reason, status: 401 });
    expect(reply.headers.get("www-authenticate")).toBe(challenge);
    await expect
      .poll(() => service.lines.filter(({ msg }) => msg === "refused"))
      .toMatchObject(Array(5).fill({ reason, ...(cause && { cause }) }));
  });

  it("allow what their scopes name, and no more", async () => {
    const service = await startWithTokens();
    await clientOf(service, reports).listInvestors({});
    await clientOf(service, importer).createInvestor(aCreate());
    for (const [scope, failing] of [
      ["investors:write", failureOf(clientOf(service, reports).createInvestor(aCreate()))],
      ["investors:write", failureOf(clientOf(service, scraper).createInvestor(aCreate()))],
      ["investors:read", failureOf(clientOf(service, importer).listInvestors({}))],
      ["investors:read", failureOf(clientOf(service, scraper).listInvestors({}))],
    ] as const) {
      const failure = await failing;
      expect(failure).toMatchObject({ code: "PermissionDenied", reason: "SCOPE_MISSING" });
      expect(failure.message).toContain(scope);
    }
    expect((await rest(service, scraper, "/metrics")).status).toBe(200);
    const refused = await rest(service, importer);
    expect(refused.status).toBe(403);
    expect(refused.headers.get("www-authenticate")).toBe(
      'Bearer realm="investor-records", error="insufficient_scope", scope="investors:read"',
    );
  });

  it("are asked for before a byte of the body is read", async () => {
    const { port } = await startWithTokens();
    for (const path of ["/investor.v1.InvestorService/CreateInvestor", "/v1/investors"]) {
      const headers = { "content-type": "application/json", "content-length": 100 };
      const { received } = openWire(port, http1("POST", path, headers));
      await expect.poll(received).toMatch(/^HTTP\/1\.1 401/);
    }
  });

  it("are checked at once, so that no flood without them holds up a call that has one", async () => {
    const service = await startWithTokens();
    const web = { "content-type": "application/grpc-web" };
    const strangers = Array.from({ length: 5 }, () => rawConnection(service.port));
    const caller = rawConnection(service.port);
    await untilArrived(caller);
    const flood = strangers.flatMap((session) =>
      Array.from({ length: 100 }, () => rawCall(session, paths.get, messages.empty, web)),
    );
    await Promise.all(strangers.map(untilArrived));
    let turns = 0;
    let turn = setImmediate(function next() {
      turns += 1;
      turn = setImmediate(next);
    });
    const headers = { ...web, authorization: orders };
    expect((await rawCall(caller, paths.get, messages.empty, headers)).status).toBe(3);
    clearImmediate(turn);
    expect(turns).toBeLessThan(40);
    const refused = { status: 16, reason: "CREDENTIALS_MISSING" };
    expect(await Promise.all(flood)).toEqual(Array(500).fill(refused));
  });

  it("leave open what tells of the state and the contract, and close the metrics", async () => {
    const service = await startWithTokens();
    for (const path of ["/healthz", "/readyz", "/openapi.json"]) {
      expect((await rest(service, undefined, path)).status, path).toBe(200);
    }
    const check = rawCall(rawConnection(service.port), paths.check, messages.empty);
    expect((await check).status).toBe(0);
    expect((await rest(service, undefined, "/metrics")).status).toBe(401);
    expect((await rest(service, importer, "/metrics")).status).toBe(200);
  });

  it("keep the records of one caller's request ids apart from another's", async () => {
    const service = await startWithTokens();
    const request = aCreate({ requestId: "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d" });
    // Under "token orders" and the digest; other ids would make a second record of a replay.
    for (const [authorization, id] of [
      [orders, "4647f65f-a843-8f02-87bb-fd558df04dd7"],
      [nameless, "5cb93e91-b7a9-82d2-87d3-b05fb673a48a"],
      [orders, "4647f65f-a843-8f02-87bb-fd558df04dd7"],
    ] as const) {
      const created = await clientOf(service, authorization).createInvestor(request);
      expect(created.id, authorization).toBe(id);
    }
  });

  it("are replaced by what their file holds when it is read again", async () => {
    const { file, reload, ...service } = await startWithTokens();
    writeFileSync(file, "orders t0ken-of-the-orders\norders t0ken-that-comes-next\n");
    await reload();
    expect((await rest(service, orders)).status).toBe(200);
    expect((await rest(service, "Bearer t0ken-that-comes-next")).status).toBe(200);
    expect((await rest(service, reports)).status).toBe(401);
  });
});

describe("a file of tokens", () => {
  it("warns if others than its owner may change it or read it", async () => {
    const file = join(temporaryFolder(), "tokens");
    writeFileSync(file, tokens);
    const warnings: string[] = [];
    for (const mode of [0o600, 0o640, 0o620, 0o604]) {
      chmodSync(file, mode);
      await readTokens(file, readFileSync(file), () => warnings.push(mode.toString(8)));
    }
    expect(warnings).toEqual(["620", "604"]);
  });
});

describe("OIDC access tokens", () => {
  const scope = "openid investors:read investors:write";
  const flagsOf = ({ url }: Issuer) => ({ "--oidc-issuer": url, "--oidc-audience": "investors" });

  async function start(flags: Record<string, string> = {}) {
    const issuer = await startIssuer();
    return { issuer, ...(await startWithTokens({ ...flagsOf(issuer), ...flags })) };
  }

  it("let their holders do what their scope says, beside tokens from a file", async () => {
    const { issuer, ...service } = await start();
    const client = clientOf(service, `Bearer ${await issuer.sign({ scope })}`);
    const requestId = v7();
    const { id } = await client.createInvestor(aCreate({ requestId }));
    expect(id).toBe(deriveId(`oidc ${issuer.url} backend`, requestId));
    const reader = clientOf(service, `Bearer ${await issuer.sign({ roles: "investors:read" })}`);
    await reader.listInvestors({});
    expect((await failureOf(reader.createInvestor(aCreate()))).reason).toBe("SCOPE_MISSING");
    expect((await rest(service, orders)).status).toBe(200);
    expect((await rest(service, "Bearer t0ken-of-nobody")).status).toBe(401);
  });

  it("are taken as soon as their issuer, which was down at the start, is up", async () => {
    const issuer = await startIssuer();
    issuer.isAvailable = false;
    const service = await startWithTokens(flagsOf(issuer));
    const cause = expect.stringContaining("cannot be fetched");
    await expect.poll(() => service.lines).toContainEqual(expect.objectContaining({ msg: cause }));
    const authorization = `Bearer ${await issuer.sign({ scope })}`;
    expect((await rest(service, authorization)).status).toBe(503);
    expect((await rest(service, orders)).status).toBe(200);
    issuer.isAvailable = true;
    await expect.poll(async () => (await rest(service, authorization)).status).toBe(200);
  });

  /** Holds back the replies of the issuer, and returns a token that cannot be checked without them. */
  async function slowDown({ issuer, ...service }: Awaited<ReturnType<typeof start>>) {
    expect((await rest(service, `Bearer ${await issuer.sign({ scope })}`)).status).toBe(200);
    await issuer.rotate();
    const authorization = `Bearer ${await issuer.sign({ scope })}`;
    const asked = issuer.requests();
    const isAsked = () => issuer.requests() > asked;
    return { authorization, isAsked, release: issuer.hold() };
  }

  it("end with the deadline of the call while their issuer is slow", async () => {
    const service = await start({ "--request-timeout": "500ms" });
    const { authorization } = await slowDown(service);
    expect((await rest(service, authorization)).status).toBe(504);
  });

  it.each(["/v1/investors?pageSize=1", "/metrics"])(
    "keep their connection from being replaced while their issuer is slow, by %s",
    async (path) => {
      const service = await start({ "--max-connections": "1" });
      const { authorization, isAsked, release } = await slowDown(service);
      const request = http1("GET", path, { authorization });
      const { received, closed } = openWire(service.port, request);
      await expect.poll(isAsked).toBe(true);
      await Promise.race([closed, openWire(service.port).closed]);
      release();
      await expect.poll(received).toContain("HTTP/1.1 200 ");
      // It carries no call any more.
      const isReplaced = async () => (await rest(service, undefined, "/healthz")).ok;
      await waitFor(() => isReplaced().catch(() => false));
    },
  );

  it("hold no slot while their issuer is slow", async () => {
    const service = await start({ "--max-in-flight": "1" });
    const { authorization, isAsked, release } = await slowDown(service);
    const call = rest(service, authorization);
    await expect.poll(isAsked).toBe(true);
    for (const other of Object.values(clientsOf(service, { authorization: orders }))) {
      await other.listInvestors({});
    }
    release();
    expect((await call).status).toBe(200);
  });
});
