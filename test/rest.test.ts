import { once } from "node:events";
import { request, STATUS_CODES } from "node:http";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import type { Reason } from "../src/failures.ts";
import { firstFields } from "../src/investor/investor.ts";
import { failures } from "./service/failures.ts";
import type { EngineOptions } from "./support/engine.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { readPage } from "./support/markdown.ts";
import { expectDocumented, findOperation, openApi } from "./support/openapi.ts";
import { anInvestor, everyText, institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { grpcClient, untilStill } from "./support/service.ts";

const list = "/v1/investors";
const json = { "content-type": "application/json" };

const content = (changes: object = {}) => ({
  ...institution,
  lastName: `Example Capital ${v4()}`,
  ...changes,
});

/** Replies must be as the OpenAPI document says, if that has the operation. */
async function ask(url: string, init: RequestInit = {}) {
  const { method = "GET" } = init;
  const reply = await fetch(url, init);
  const { status, headers } = reply;
  const text = await reply.text();
  type Body = Record<string, unknown> & { errors?: Record<string, string>[]; reason?: string };
  const body: Body = text ? JSON.parse(text) : {};
  const { pathname } = new URL(url);
  const operation = findOperation(method, pathname);
  if (operation === undefined && pathname.startsWith("/v1")) expect([404, 405]).toContain(status);
  if (operation !== undefined && method !== "HEAD") {
    expectDocumented(operation, status, headers.get("content-type"), body);
  }
  return { status, headers, text, body };
}

async function start() {
  const { port } = await startInProcess();
  const base = `http://127.0.0.1:${port}`;
  return {
    port,
    ask: (path: string, init?: RequestInit) => ask(base + path, init),
    post: (body: unknown, headers = {}) =>
      ask(base + list, {
        method: "POST",
        headers: { ...json, ...headers },
        body: typeof body === "string" ? body : JSON.stringify(body),
      }),
  };
}

describe("REST", () => {
  it("creates, gets and lists records with every field of the contract", async () => {
    const { ask, post, port } = await start();
    const request = content(everyText);
    const created = await post(request);
    expect(created.status).toBe(200);
    expect(created.body).toEqual({ id: expect.stringMatching(/^[0-9a-f-]{36}$/), ...request });
    const id = String(created.body.id);
    expect((await ask(`${list}/${id}`)).body).toEqual(created.body);
    expect((await ask(list)).body).toEqual([created.body]);
    expect((await grpcClient({ port }).getInvestor({ id })).lastName).toBe(request.lastName);
  });

  it("lists all records as one array, in order, and in pages that link to the next", async () => {
    const { ask, port } = await start();
    const client = grpcClient({ port });
    expect((await ask(list)).body).toEqual([]);
    const created = await Promise.all(
      Array.from({ length: 250 }, () => client.createInvestor({ ...content(), type: 1 })),
    );
    const all = (await ask(list)).body as unknown as { id: string }[];
    expect(all.map(({ id }) => id)).toEqual(created.map(({ id }) => id).sort());
    const seen: unknown[] = [];
    let query: string | undefined = "?pageSize=90";
    while (query !== undefined) {
      const { body, headers }: Awaited<ReturnType<typeof ask>> = await ask(list + query);
      seen.push(...(body as unknown as unknown[]));
      // Without the path, it holds behind any prefix of a proxy.
      query = /^<(\?[^>]+)>; rel="next"$/.exec(headers.get("link") ?? "")?.[1];
    }
    expect(seen).toEqual(all);
  });

  it("replies to HEAD as to GET, without the body, and has no record stored by caches", async () => {
    const { ask, post } = await start();
    const { body } = await post(content());
    for (const path of [list, `${list}?pageSize=1`, `${list}/${body.id}`]) {
      const got = await ask(path);
      expect(got.text, path).toContain(body.lastName);
      expect(got.headers.get("cache-control"), path).toBe("no-store");
      const head = await ask(path, { method: "HEAD" });
      expect([head.status, head.text], path).toEqual([200, ""]);
      expect(head.headers.get("cache-control"), path).toBe("no-store");
    }
    expect((await ask(`${list}/${v7()}`, { method: "HEAD" })).status).toBe(404);
  });

  it("tells a wrong Idempotency-Key from a member requestId, which it does not have", async () => {
    const { post } = await start();
    const member = { requestId: v7(), ...institution };
    const unknown = { pointer: "#/requestId", detail: "is not a member of an investor" };
    const good = await post(member, { "idempotency-key": v7() });
    expect(good.body.errors).toEqual([unknown]);
    for (const wrong of ["abc", "", '""']) {
      const { status, body } = await post(member, { "idempotency-key": wrong });
      expect(status).toBe(400);
      expect(body.errors, wrong).toMatchObject([unknown, { header: "Idempotency-Key" }]);
    }
  });

  it("makes one record of a repeated Idempotency-Key, quoted or bare", async () => {
    const { ask, post } = await start();
    const key = v7();
    const request = content();
    const first = await post(request, { "idempotency-key": `"${key}"` });
    const again = await post(request, { "idempotency-key": key });
    expect(again).toMatchObject({ status: 200, body: first.body });
    const other = await post(content(), { "idempotency-key": key });
    expect(other).toMatchObject({
      status: 422,
      body: { reason: "REQUEST_ID_REUSED", type: "urn:investor-records:problem:request-id-reused" },
    });
    expect((await ask(list)).body).toHaveLength(1);
  });

  it("names every member that is wrong, at once, and stores nothing", async () => {
    const { ask, post } = await start();
    const wrong = {
      ...content({ type: "person", firstName: null, middleName: 7, city: "a\ud800" }),
      ...{ country: "USA", id: v7(), "a/b~": true, state: ["IL"], zipCode: undefined },
    };
    const { status, body } = await post(wrong);
    expect(status).toBe(400);
    expect(body).toMatchObject({ status: 400, reason: "INVALID_FIELDS", title: "Bad Request" });
    const pointers = (names: readonly string[]) => names.map((name) => `#/${name}`);
    const named = ["type", "firstName", "middleName", "city", "country", "id", "a~1b~0"];
    expect(body.errors?.map(({ pointer }) => pointer).toSorted()).toEqual(
      pointers([...named, "state", "zipCode"]).toSorted(),
    );
    const empty = (await post({})).body.errors;
    expect(empty?.map(({ pointer }) => pointer)).toEqual(pointers(["type", ...firstFields]));
    expect((await ask(list)).body).toEqual([]);
  });

  it("names a hundred unknown members, and any number of others that are wrong", async () => {
    const { post } = await start();
    const unknown = (prefix: string) =>
      Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`${prefix}${i}`, ""]));
    const wrong = content({ city: 7, state: "\n" });
    const { errors } = (await post({ ...unknown("x"), ...wrong, ...unknown("y") })).body;
    expect(errors?.slice(99)).toEqual([
      { pointer: "#/x99", detail: "is not a member of an investor" },
      { pointer: "#/city", detail: "must be a string" },
      { pointer: "#/state", detail: "must not contain control characters" },
    ]);
  });

  it("refuses a body that is not one object, or names a member twice", async () => {
    const { post } = await start();
    const text = JSON.stringify(content({ city: 'a "b": \\"c\\": d', state: '"state":' }));
    expect((await post(text)).status).toBe(200);
    const repeated = ["city", "ci\\u0074y"].map((name) => text.replace("{", `{"${name}":"x",`));
    const values = ["null", '{"city":"x"}', '[{"city":1}]', '"x"'].flatMap((value) => [
      text.replace("{", `{"city":${value},`),
      text.replace(/}$/, `,"city":${value}}`),
    ]);
    for (const body of ["", "[]", "{", ...repeated, ...values]) {
      const reply = await post(body);
      expect(reply, body).toMatchObject({ status: 400, body: { reason: "MALFORMED_REQUEST" } });
    }
  });

  it("reads only application/json that is not compressed", async () => {
    const { post } = await start();
    for (const headers of [
      { "content-type": "text/plain" },
      { "content-type": "application/jsonx" },
      { "content-type": "application/json; charset=iso-8859-1" },
      { "content-encoding": "gzip" },
    ]) {
      expect(await post(content(), headers)).toMatchObject({
        status: 415,
        body: { reason: "UNSUPPORTED_MEDIA_TYPE" },
      });
    }
    for (const parameters of ["; charset=utf-8", ';Charset="UTF-8"', "; version=1"]) {
      const type = { "content-type": `Application/JSON${parameters}` };
      expect((await post(content(), type)).status, parameters).toBe(200);
    }
  });

  it("refuses a query that is no page, and names the parameters, at most 100", async () => {
    const { ask } = await start();
    const names = Array.from({ length: 200 }, (_, i) => `p${i}`);
    for (const [query, parameters] of [
      ["?pageSize=5", ["?pageSize"]],
      ["pagesize=1", ["pagesize"]],
      ["pageSize=1&pageSize=2", ["pageSize"]],
      ["pageSize=ten", ["pageSize"]],
      ["pageSize=", ["pageSize"]],
      ["pageSize=99999999999", ["pageSize"]],
      ["pageSize=-1&pageToken=x", ["pageSize", "pageToken"]],
      ["pageToken=%ff", ["pageToken"]],
      ["limit=1&offset=2", ["limit", "offset"]],
      [names.join("&"), names.slice(0, 100)],
      [`${names.join("&")}&pageSize=-1`, [...names.slice(0, 100), "pageSize"]],
    ] as const) {
      const { status, body } = await ask(`${list}?${query}`);
      const named = body.errors?.map(({ parameter }) => parameter);
      expect([status, named], query).toEqual([400, parameters]);
    }
  });

  it("finds nothing under a path or an id of nothing, and says which methods there are", async () => {
    const { ask } = await start();
    for (const path of ["/v1", `${list}/`, `${list}/a/b`, "/v2/investors"]) {
      const { status, body } = await ask(path);
      expect([status, body.reason], path).toEqual([404, "NOT_FOUND"]);
    }
    const id = v7();
    const { status, body } = await ask(`${list}/${id}`);
    expect([status, body]).toMatchObject([404, { reason: "INVESTOR_NOT_FOUND", metadata: { id } }]);
    expect((await ask(`${list}/%00%2F`)).status).toBe(404);
    expect((await ask(`${list}/%ff`)).status).toBe(400);
    for (const [path, operations = {}] of Object.entries(openApi.paths)) {
      const { headers } = await ask(path.replace("{id}", id), { method: "PATCH" });
      const methods = [...Object.keys(operations).map((name) => name.toUpperCase()), "HEAD"];
      expect(headers.get("allow")?.split(", ")).toEqual(methods.toSorted());
    }
    expect((await ask("/healthz", { method: "POST" })).headers.get("allow")).toBe("GET, HEAD");
  });
});

async function serve(methods: Methods, options: Partial<EngineOptions> = {}) {
  const { port, gate } = await serveMethods(methods, options);
  return { url: `http://127.0.0.1:${port}${list}`, gate };
}

describe("a failure by REST", () => {
  /** The one operation that has a reason, if not all have it. */
  const only: Partial<Record<Reason, string>> = {
    INVESTOR_NOT_FOUND: "getInvestor",
    REQUEST_ID_REUSED: "createInvestor",
    MESSAGE_TOO_LARGE: "createInvestor",
    OUTCOME_UNKNOWN: "createInvestor",
  };
  // Only a caller who has left learns of CANCELLED.
  const reasons = (Object.keys(failures) as Reason[]).filter((reason) => reason !== "CANCELLED");

  it.each(reasons)("is documented for %s, with its status", async (reason) => {
    for (const error of failures[reason]) {
      const fail = () => Promise.reject(error);
      const { url } = await serve({ createInvestor: fail, getInvestor: fail, listInvestors: fail });
      const body = JSON.stringify(institution);
      for (const [operation, path, init] of [
        ["createInvestor", url, { method: "POST", headers: json, body }],
        ["getInvestor", `${url}/${v7()}`, {}],
        ["listInvestors", url, {}],
      ] as const) {
        if (only[reason] && only[reason] !== operation) continue;
        const { status, headers, body } = await ask(path, init);
        expect(body).toMatchObject({ reason, status, title: STATUS_CODES[status] });
        const row = new RegExp(`^\\| \`${reason}\` +\\| \`[A-Z_]+\` +\\| ${status} `, "m");
        expect(readPage("docs/calling.md")).toMatch(row);
        expect(headers.has("retry-after")).toBe(status === 503);
        expect(headers.has("www-authenticate")).toBe(status === 401 || status === 403);
      }
    }
  });
});

describe("the whole list by REST", () => {
  const page = () => ({
    investors: Array.from({ length: 1_000 }, () => anInvestor({ lastName: "x".repeat(200) })),
    nextPageToken: "more",
  });

  const hang = (signal: AbortSignal) =>
    once(signal, "abort").then(() => Promise.reject(signal.reason));

  it.each([
    ["if the store fails midway", () => Promise.reject(new Error("the store is gone"))],
    ["at the deadline of a page that hangs", hang],
  ])("is cut off, and never looks complete, %s", async (_, last) => {
    const pages = [page, page];
    const listInvestors: Methods["listInvestors"] = (_, { signal }) =>
      pages.pop()?.() ?? last(signal);
    const { url, gate } = await serve({ listInvestors }, { requestTimeoutMs: 1_000 });
    const reply = await fetch(url);
    expect(reply.status).toBe(200);
    await expect(reply.text()).rejects.toThrow();
    await expect.poll(() => gate.inFlight).toBe(0);
  });

  it("reads no further than its caller, and stops when the caller leaves", async () => {
    let pages = 0;
    const listInvestors = () => {
      pages += 1;
      return page();
    };
    const { url, gate } = await serve({ listInvestors });
    const req = request(url).end();
    const [res] = await once(req, "response");
    res.pause();
    await untilStill(() => pages);
    // What the sockets of both sides hold, and no more.
    expect(pages).toBeLessThan(60);
    req.destroy();
    await expect.poll(() => gate.inFlight).toBe(0);
  });
});
