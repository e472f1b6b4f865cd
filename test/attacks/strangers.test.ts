/** Those who have no credentials, or none that are good, beside those who have. */
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import { frame } from "../support/raw-grpc.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import {
  grpcHeaders,
  http1,
  http1Requests,
  jsonMessages,
  messages,
  plainJson,
  rpc,
  secret,
} from "./requests.ts";
import type { Target } from "./target.ts";

/** Values of an authorization header that nobody has. */
const authorizations = [
  "",
  "Bearer",
  "Bearer ",
  "Bearer  ",
  "Bearer null",
  "Bearer undefined",
  "Bearer good",
  "Bearer greedy",
  "Bearer investors:read",
  "bearer x",
  "Basic Z29vZDpnb29k",
  "Digest username=good",
  "Negotiate x",
  `Bearer ${secret}`,
  `Bearer ${secret}-token-of-the-good-012345678`,
  `Bearer ${secret}-token-of-the-good-01234567890`,
  `bearer ${secret.toLowerCase()}-token-of-the-good-0123456789`,
  "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.",
  "Bearer ..",
  `Bearer ${"x".repeat(8_000)}`,
  "Bearer \t",
  "Token x",
  "__proto__",
  "Bearer __proto__",
  "Bearer constructor",
];

/** Other fields by which a caller might be taken for somebody else. */
const disguises: Record<string, string>[] = [
  {},
  { "x-forwarded-for": "127.0.0.1", "x-forwarded-user": "good", "x-real-ip": "127.0.0.1" },
  { "proxy-authorization": "Bearer good", cookie: "authorization=good" },
  { "x-http-method-override": "GET", "x-original-url": "/healthz", "x-rewrite-url": "/healthz" },
  {
    "grpc-metadata-authorization": "Bearer good",
    "x-client-cert": "CN=good",
    "ssl-client-verify": "SUCCESS",
  },
];

/** Other spellings of a path, which might be routed past who asks for credentials. */
const spellings = [
  (path: string) => path,
  (path: string) => `${path}?authorization=good`,
  (path: string) => `${path}/`,
  (path: string) => `/${path}`,
  (path: string) => path.toUpperCase(),
  (path: string) => path.replace("/v1", "/%76%31").replace("investor.v1", "investor%2ev1"),
  (path: string) => `/healthz/..${path}`,
  (path: string) => `/healthz/%2e%2e${path}`,
  (path: string) => `${path};/healthz`,
  (path: string) => `${path}%00`,
  (path: string) => `${path}#/healthz`,
  (path: string) => `http://localhost${path}`,
];

/** Statuses by which a request over HTTP is refused. */
const refusals = [400, 401, 403, 404, 405, 411, 413, 414, 415, 417, 431, 501, 505];

const methods = ["POST", "GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "SEARCH"];
const paths = ["/v1/investors", `${rpc}/CreateInvestor`, `${rpc}/ListInvestors`, "/metrics"];

async function refusedByHttp1(target: Target): Promise<number> {
  const forms = paths.flatMap((path) => [
    ...methods.flatMap((method) =>
      spellings.map((spell) => ({ method, path: spell(path), fields: {} })),
    ),
    ...authorizations.map((authorization) => ({ method: "POST", path, fields: { authorization } })),
    ...disguises.flatMap((fields) => [
      { method: "POST", path, fields },
      { method: "GET", path, fields },
    ]),
  ]);
  const left = [...forms];
  const callOn = async () => {
    for (let form = left.pop(); form !== undefined; form = left.pop()) {
      const { method, path, fields } = form;
      const body = path.includes("List") ? "{}" : plainJson;
      const { socket, received, closed } = await target.open("http");
      const headers = { connection: "close", "content-type": "application/json", ...fields };
      socket.write(http1(method, path, headers, method === "GET" ? undefined : body));
      const name = `${method} ${path} ${JSON.stringify(fields).slice(0, 200)}`;
      expect(await closed(5_000), `closed: ${name}`).toBe(true);
      const status = Number(/^HTTP\/1.1 (\d+)/.exec(received())?.[1] ?? 400);
      expect(refusals, name).toContain(status);
    }
  };
  await Promise.all(Array.from({ length: 8 }, callOn));
  return forms.length;
}

async function refusedByHttp2(target: Target): Promise<number> {
  let count = 0;
  for (const port of ["grpc", "http"] as const) {
    const session = await target.session(port);
    const types = [
      "application/grpc",
      "application/grpc+json",
      "application/grpc-web+proto",
      "application/proto",
      "application/json",
    ];
    const calls = Object.entries(messages).flatMap(([name, message]) =>
      types.flatMap((type) => {
        const json = Buffer.from(jsonMessages[name as keyof typeof messages]);
        const content = type.includes("json") ? json : message;
        const body = type.includes("grpc") ? frame(content) : content;
        const path = `${rpc}/${name}`;
        return [...authorizations.map((authorization) => ({ authorization })), ...disguises].map(
          (fields) => ({ head: { ...grpcHeaders(path, fields), "content-type": type }, body }),
        );
      }),
    );
    for (let i = 0; i < calls.length; i += 50) {
      const some = calls.slice(i, i + 50);
      const replies = await Promise.all(
        some.map(({ head, body }) => target.ask(session, head, body)),
      );
      for (const [n, { status, grpcStatus, body }] of replies.entries()) {
        const name = `${port} ${JSON.stringify(some[n]?.head).slice(0, 200)}`;
        const isRefused =
          (status !== 200 ||
            (grpcStatus ?? "0") !== "0" ||
            /grpc-status: ?16/.test(String(body))) &&
          status !== 500 &&
          status !== undefined;
        expect(isRefused, `${name}: ${status} ${grpcStatus}`).toBe(true);
      }
    }
    count += calls.length;
    session.destroy();
  }
  return count;
}

const attacks: Attack[] = [
  { name: "requests of every form by HTTP/1.1", on: "TLS", run: refusedByHttp1 },
  { name: "calls of every form by HTTP/2", on: "TLS", run: refusedByHttp2 },
  {
    name: "refused calls on windows of size 0",
    on: "TLS",
    async run(target) {
      for (let i = 0; i < 9; i += 1) {
        const session = await target.session(i % 3 === 0 ? "grpc" : "http", {
          settings: { initialWindowSize: 0 },
        });
        for (let n = 0; n < 128; n += 1) {
          session.request({ ":path": "/v1/investors" }).on("error", () => {});
        }
      }
      await delay(1_500);
      return 9 * 128;
    },
  },
  {
    name: "refused calls whose replies nobody reads",
    on: "TLS",
    async run(target) {
      const { socket, closed } = await target.open("http");
      socket.pause();
      const one = http1("GET", "/v1/investors");
      const some = Buffer.concat(Array(1_000).fill(one));
      // More than the buffers of the system take of replies, which are longer.
      for (let i = 0; i < 40 && !socket.destroyed; i += 1) {
        socket.write(some);
        await delay(10);
      }
      const isClosed = await closed(15_000);
      expect(isClosed, "the connection was destroyed").toBe(true);
      return 40_000;
    },
  },
  {
    name: "references that nobody reads, and calls after them",
    async run(target) {
      const {
        reference,
        "REST create": create,
        probe,
      } = http1Requests({}) as Record<string, Buffer>;
      for (let i = 0; i < 4; i += 1) {
        const { socket } = await target.open("http");
        socket.pause();
        socket.write(
          Buffer.concat([
            ...Array(600).fill(reference),
            ...Array(300).fill(i % 2 === 0 ? create : probe),
          ]),
        );
      }
      await delay(1_500);
      return 4 * 900;
    },
  },
  {
    name: "tokens of a key that the issuer has yet to tell of",
    on: "TLS",
    async run(target) {
      const { issuer } = target;
      if (issuer === undefined) throw new Error("there is no issuer");
      const known = await issuer.sign({ scope: "investors:read" });
      const list = grpcHeaders(`${rpc}/ListInvestors`);
      const session = await target.session("grpc");
      const ask = (token: string) =>
        target.askKnown(
          session,
          { ...list, authorization: `Bearer ${token}` },
          frame(Buffer.from([8, 1])),
        );
      await ask(known);
      await issuer.rotate();
      const unknown = await issuer.sign({ scope: "investors:read" });
      const release = issuer.hold();
      try {
        for (let i = 0; i < 9; i += 1) {
          const some = await target.session("grpc");
          for (let n = 0; n < 125; n += 1) {
            some
              .request({ ...list, authorization: `Bearer ${unknown}` })
              .on("error", () => {})
              .end(frame(Buffer.alloc(0)));
          }
        }
        await delay(1_500);
      } finally {
        release();
      }
      return 9 * 125;
    },
  },
  {
    name: "clients who leave while their credentials are checked",
    on: "TLS",
    async run(target) {
      const { issuer } = target;
      if (issuer === undefined) throw new Error("there is no issuer");
      await issuer.rotate();
      const sign = () => issuer.sign({ scope: "investors:read investors:write" });
      const authorization = `Bearer ${await sign()}`;
      const release = issuer.hold();
      const json = { authorization, "content-type": "application/json" };
      for (let i = 0; i < 16; i += 1) {
        const { socket } = await target.open("http");
        const isList = i % 2 === 0;
        socket.write(
          isList
            ? http1("GET", "/v1/investors", { authorization })
            : http1("POST", "/v1/investors", json, plainJson),
        );
      }
      await delay(200);
      target.release();
      await delay(200);
      release();
      // Nothing that they asked for is done, and the whole list is there for others.
      await expect
        .poll(
          async () => (await target.request("/v1/investors", { headers: target.greedy })).status,
        )
        .toBe(200);
      return 16;
    },
  },
  {
    name: "refused calls, as many as go, and lines of the log",
    on: "TLS",
    async run(target) {
      const session = await target.session("grpc");
      const before = target.service.output().length;
      const start = performance.now();
      let count = 0;
      while (performance.now() - start < 2_000) {
        await Promise.all(
          Array.from({ length: 50 }, () =>
            target.ask(session, grpcHeaders(`${rpc}/ListInvestors`), frame(Buffer.alloc(0))),
          ),
        );
        count += 50;
      }
      const seconds = Math.ceil((performance.now() - start) / 1_000);
      const lines = target.service.output().slice(before).split("\n").length;
      // Ten a second and a count of the rest, and what good callers cause.
      expect(lines, `lines of ${count} refused calls in ${seconds} s`).toBeLessThan(
        11 * (seconds + 1) + 20,
      );
      return count;
    },
  },
  {
    name: "sessions with calls that are closed at once",
    on: "TLS",
    async run(target) {
      const count = 200;
      for (let i = 0; i < count; i += 4) {
        await Promise.all(
          Array.from({ length: 4 }, async (_, k) => {
            const calls = [4, 20, 100][i % 3] ?? 0;
            const session = await target.session(k % 2 === 0 ? "grpc" : "http", {
              settings: { initialWindowSize: 0 },
            });
            for (let n = 0; n < calls; n += 1) {
              session
                .request(grpcHeaders(`${rpc}/ListInvestors`, target.greedy))
                .on("error", () => {})
                .end(frame(Buffer.alloc(0)));
            }
            await new Promise(setImmediate);
            session.destroy();
          }),
        );
      }
      return count;
    },
  },
];

describeAttacks("strangers", attacks);
