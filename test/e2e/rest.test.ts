import { once } from "node:events";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { textFields } from "../../src/investor.ts";
import { expectDocumented, findOperation, openApi, openApiFile } from "../support/openapi.ts";
import { rawConnection } from "../support/raw-grpc.ts";
import { institution } from "../support/records.ts";
import { grpcClient, type Service, startService } from "../support/service.ts";

const content = (changes: object = {}) => ({
  ...institution,
  lastName: `Example Capital ${v4()}`,
  ...changes,
});

interface Answer {
  status: number;
  headers: Headers;
  body: Record<string, unknown> & { errors?: Record<string, string>[] };
}

/** Asks the service, whose reply must be as the OpenAPI document says, if it has the operation. */
async function ask(service: Service, path: string, init: RequestInit = {}): Promise<Answer> {
  const { method = "GET" } = init;
  const answer = await fetch(`http://127.0.0.1:${service.httpPort}${path}`, init);
  const { status, headers } = answer;
  const text = await answer.text();
  const body = text ? JSON.parse(text) : {};
  const operation = findOperation(method, path);
  if (operation === undefined && path.startsWith("/v1")) expect([404, 405]).toContain(status);
  if (operation !== undefined && method !== "HEAD") {
    expectDocumented(operation, status, headers.get("content-type"), body);
  }
  return { status, headers, body };
}

const post = (service: Service, body: unknown, headers = {}) =>
  ask(service, "/v1/investors", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: typeof body === "string" ? body : JSON.stringify(body),
  });

describe("REST", () => {
  it("creates, gets and lists twelve strings a record", async () => {
    const service = await startService();
    const request = content();
    const created = await post(service, request);
    expect(created.status).toBe(200);
    expect(created.headers.get("content-type")).toBe("application/json");
    expect(created.headers.get("cache-control")).toBe("no-store");
    expect(created.body).toEqual({ id: expect.stringMatching(/^[0-9a-f-]{36}$/), ...request });
    const id = String(created.body.id);
    expect((await ask(service, `/v1/investors/${id}`)).body).toEqual(created.body);
    expect((await ask(service, `/v1/investors/${id.toUpperCase()}`)).body).toEqual(created.body);
    expect((await ask(service, "/v1/investors")).body).toEqual([created.body]);
    expect((await grpcClient(service).getInvestor({ id })).lastName).toBe(request.lastName);
  });

  it("refuses a member that is there twice, and tells of a hundred mistakes at most", async () => {
    const service = await startService();
    const text = JSON.stringify(content({ city: 'a "b": \\"c\\": d', state: '"state":' }));
    expect((await post(service, text)).status).toBe(200);
    for (const name of ["city", "ci\\u0074y"]) {
      const { status, body } = await post(service, text.replace("{", `{"${name}":"x",`));
      expect([status, body.reason], name).toEqual([400, "MALFORMED_REQUEST"]);
    }
    const unknown = Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`x${i}`, ""]));
    const { status, body } = await post(service, { ...content(), ...unknown });
    expect([status, body.reason]).toEqual([400, "INVALID_FIELDS"]);
    expect(body.errors).toHaveLength(100);
  });

  it("lists an empty array when there is nothing", async () => {
    expect((await ask(await startService(), "/v1/investors")).body).toEqual([]);
  });

  it("lists all records as one array, in order", async () => {
    const service = await startService();
    const client = grpcClient(service);
    const { type: _, ...rest } = content();
    const created = await Promise.all(
      Array.from({ length: 2_500 }, () => client.createInvestor({ ...rest, type: 1 })),
    );
    const { body } = await ask(service, "/v1/investors");
    const ids = (body as unknown as { id: string }[]).map(({ id }) => id);
    expect(ids).toEqual(created.map(({ id }) => id).sort());
  });

  it("returns pages that link to the next", async () => {
    const service = await startService();
    for (let i = 0; i < 5; i += 1) await post(service, content());
    const all = (await ask(service, "/v1/investors")).body as unknown as unknown[];
    const seen: unknown[] = [];
    let path: string | undefined = "/v1/investors?pageSize=2";
    while (path !== undefined) {
      const page: Answer = await ask(service, path);
      seen.push(...(page.body as unknown as unknown[]));
      const next: string | undefined = /^<([^>]+)>; rel="next"$/.exec(
        page.headers.get("link") ?? "",
      )?.[1];
      // It is relative, so that it holds behind any prefix.
      path = next && `/v1/investors${next}`;
    }
    expect(seen).toEqual(all);
  });

  it("replies to HEAD as to GET, without the body", async () => {
    const service = await startService();
    const { body } = await post(service, content());
    for (const path of ["/v1/investors", `/v1/investors/${body.id}`, "/healthz", "/openapi.json"]) {
      const answer = await ask(service, path, { method: "HEAD" });
      expect(answer).toMatchObject({ status: 200, body: {} });
    }
    expect((await ask(service, `/v1/investors/${v7()}`, { method: "HEAD" })).status).toBe(404);
  });

  it("says of every reply with a record not to store it", async () => {
    const service = await startService();
    const { body } = await post(service, content());
    await post(service, content());
    const rpc = "/investor.v1.InvestorService";
    const message = (value: object) =>
      `connect=v1&encoding=json&message=${encodeURIComponent(JSON.stringify(value))}`;
    for (const [path, method] of [
      [`/v1/investors/${body.id}`, "GET"],
      [`/v1/investors/${body.id}`, "HEAD"],
      ["/v1/investors?pageSize=1", "GET"],
      ["/v1/investors?pageSize=1", "HEAD"],
      ["/v1/investors", "GET"],
      ["/v1/investors", "HEAD"],
      [`${rpc}/GetInvestor?${message({ id: body.id })}`, "GET"],
      [`${rpc}/ListInvestors?${message({})}`, "GET"],
    ] as const) {
      const response = await fetch(`http://127.0.0.1:${service.httpPort}${path}`, { method });
      const name = `${method} ${path}`;
      expect(response.status, name).toBe(200);
      expect((await response.text()).includes(String(body.lastName)), name).toBe(method === "GET");
      expect(response.headers.get("cache-control"), name).toBe("no-store");
    }
  });

  it("is on the HTTP port only, as are probes, metrics and the reference", async () => {
    const { grpcPort, httpPort } = await startService();
    const session = rawConnection(grpcPort);
    for (const path of ["/v1/investors", "/healthz", "/readyz", "/metrics", "/", "/openapi.json"]) {
      expect((await fetch(`http://127.0.0.1:${httpPort}${path}`)).status, path).toBe(200);
      const stream = session.request({ ":path": path });
      const [headers] = await once(stream, "response");
      expect(headers[":status"], path).toBe(404);
      stream.close();
    }
  });

  it("makes one record of a repeated Idempotency-Key, quoted or bare", async () => {
    const service = await startService();
    const key = v7();
    const request = content();
    const first = await post(service, request, { "idempotency-key": `"${key}"` });
    const again = await post(service, request, { "idempotency-key": key });
    expect(again).toMatchObject({ status: 200, body: first.body });
    const other = await post(service, content(), { "idempotency-key": key });
    expect(other).toMatchObject({
      status: 422,
      body: { reason: "REQUEST_ID_REUSED", type: "urn:investor-records:problem:request-id-reused" },
    });
    expect((await ask(service, "/v1/investors")).body).toHaveLength(1);
  });

  it("names every member that is wrong, at once, and stores nothing", async () => {
    const service = await startService();
    const wrong = {
      ...content({
        type: "person",
        firstName: null,
        middleName: 7,
        city: "a\u0000",
        country: "USA",
      }),
      id: v7(),
      "a/b~": true,
      state: ["IL"],
      zipCode: undefined,
    };
    const { status, headers, body } = await post(service, wrong);
    expect(status).toBe(400);
    expect(headers.get("content-type")).toBe("application/problem+json");
    expect(body).toMatchObject({ status: 400, reason: "INVALID_FIELDS", title: "Bad Request" });
    expect(body.errors?.map(({ pointer }) => pointer).sort()).toEqual(
      ["type", "firstName", "middleName", "city", "country", "id", "a~1b~0", "state", "zipCode"]
        .map((name) => `#/${name}`)
        .sort(),
    );
    expect((await ask(service, "/v1/investors")).body).toEqual([]);
  });

  it("wants all eleven members", async () => {
    const { body } = await post(await startService(), {});
    const pointers = ["type", ...textFields].map((name) => `#/${name}`);
    expect(body.errors?.map(({ pointer }) => pointer)).toEqual(pointers);
  });

  it("refuses a body that is not one object", async () => {
    const service = await startService();
    for (const text of ["", "[]", "null", "7", '"x"', "{", '{"a":1}{', "\ufeff[]"]) {
      const answer = await post(service, text);
      expect(answer, text).toMatchObject({ status: 400, body: { reason: "MALFORMED_REQUEST" } });
    }
  });

  it("refuses invalid UTF-8 and unpaired surrogates", async () => {
    const service = await startService();
    const latin1 = Buffer.from(JSON.stringify(content({ city: "Malmö" })), "latin1");
    const raw = await ask(service, "/v1/investors", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: new Uint8Array(latin1),
    });
    expect(raw).toMatchObject({ status: 400, body: { reason: "MALFORMED_REQUEST" } });
    const surrogate = await post(service, JSON.stringify(content({ city: "\ud800" })));
    expect(surrogate.body.errors).toEqual([
      { pointer: "#/city", detail: "must not contain unpaired surrogates" },
    ]);
  });

  it("reads only application/json of at most 64 KiB", async () => {
    const service = await startService();
    for (const headers of [
      { "content-type": "text/plain" },
      { "content-type": "application/jsonx" },
      { "content-encoding": "gzip" },
    ]) {
      expect(await post(service, content(), headers)).toMatchObject({
        status: 415,
        body: { reason: "UNSUPPORTED_MEDIA_TYPE" },
      });
    }
    const charset = { "content-type": "Application/JSON; charset=utf-8" };
    expect((await post(service, content(), charset)).status).toBe(200);
    const large = await post(service, content({ city: "x".repeat(70_000) }));
    expect(large).toMatchObject({ status: 413, body: { reason: "MESSAGE_TOO_LARGE" } });
  });

  it("refuses a query that is no page, and names the parameters", async () => {
    const service = await startService();
    const names = Array.from({ length: 200 }, (_, i) => `p${i}`);
    for (const [query, parameters] of [
      ["?pageSize=5", ["?pageSize"]],
      ["&?pageSize=5", ["?pageSize"]],
      ["pagesize=1", ["pagesize"]],
      ["pageSize=1&pageSize=2", ["pageSize"]],
      ["pageSize=ten", ["pageSize"]],
      ["pageSize=", ["pageSize"]],
      ["pageSize=-1", ["pageSize"]],
      ["pageSize=99999999999", ["pageSize"]],
      ["pageToken=nonsense", ["pageToken"]],
      ["pageSize=-1&pageToken=x", ["pageSize", "pageToken"]],
      ["limit=1&offset=2", ["limit", "offset"]],
      [names.join("&"), names.slice(0, 100)],
    ] as const) {
      const { status, body } = await ask(service, `/v1/investors?${query}`);
      expect(status, query).toBe(400);
      expect(
        body.errors?.map(({ parameter }) => parameter),
        query,
      ).toEqual(parameters);
    }
  });

  it("refuses a key that is no UUID, and names the header", async () => {
    const service = await startService();
    const { status, body } = await post(service, content(), { "idempotency-key": "abc" });
    expect(status).toBe(400);
    expect(body.errors?.map(({ header }) => header)).toEqual(["Idempotency-Key"]);
  });

  it("returns problems of routing", async () => {
    const service = await startService();
    for (const path of ["/v1", "/v1/investors/", "/v1/investors/a/b", "/v2/investors"]) {
      expect(await ask(service, path), path).toMatchObject({
        status: 404,
        body: { reason: "NOT_FOUND", status: 404 },
      });
    }
    for (const [method, path, allow] of [
      ["DELETE", "/v1/investors", "GET, HEAD, POST"],
      ["PUT", `/v1/investors/${v7()}`, "GET, HEAD"],
      ["POST", "/healthz", "GET, HEAD"],
    ] as const) {
      const { status, headers } = await ask(service, path, { method });
      expect({ status, allow: headers.get("allow") }).toEqual({ status: 405, allow });
    }
  });

  it("finds nothing under an id that names no record", async () => {
    const service = await startService();
    const id = v7();
    expect(await ask(service, `/v1/investors/${id}`)).toMatchObject({
      status: 404,
      body: { reason: "INVESTOR_NOT_FOUND", metadata: { id } },
    });
    expect((await ask(service, "/v1/investors/%00%2F")).status).toBe(404);
    expect((await ask(service, "/v1/investors/%ff")).status).toBe(400);
  });

  it("has the methods that its reference has, and HEAD", async () => {
    const service = await startService();
    for (const [path, operations = {}] of Object.entries(openApi.paths)) {
      const { headers } = await ask(service, path.replace("{id}", v7()), { method: "PATCH" });
      const methods = [...Object.keys(operations).map((name) => name.toUpperCase()), "HEAD"];
      expect(headers.get("allow")?.split(", ")).toEqual(methods.toSorted());
    }
  });

  it("serves its reference, its life and its readiness", async () => {
    const service = await startService();
    const reference = await fetch(`http://127.0.0.1:${service.httpPort}/openapi.json`);
    expect(reference.headers.get("content-type")).toBe("application/json");
    expect(Buffer.from(await reference.arrayBuffer())).toEqual(openApiFile);
    const { body } = await ask(service, "/openapi.json");
    expect(body).toMatchObject({ openapi: "3.1.0" });
    expect(Object.keys(body.paths as object)).toEqual(["/v1/investors", "/v1/investors/{id}"]);
    expect((await ask(service, "/healthz")).status).toBe(200);
    expect((await ask(service, "/readyz")).status).toBe(200);
  });
});
