/** Which web pages may call, and what reaches clients behind a proxy. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type RequestOptions, request } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { describe, expect, it, onTestFinished } from "vitest";
import { institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";

const rpc = "/investor.v1.InvestorService/GetInvestor";
const rest = "/v1/investors";

/** The settings of a service that takes requests to any host. */
const open = { "--host": "0.0.0.0", "--allow-insecure": "true" };

async function send(port: number, path: string, options: RequestOptions = {}) {
  const req = request({ ...options, port, path }).end();
  const [res] = (await once(req, "response")) as [IncomingMessage];
  return { status: res.statusCode, headers: res.headers, body: await text(res) };
}

async function statusOf(port: number, path: string, headers: Record<string, string>) {
  return (await send(port, path, { headers })).status;
}

describe("CORS", () => {
  const preflight = (port: number, origin: string) => {
    const asked = "Content-Type,Idempotency-Key,traceparent";
    const headers = {
      origin,
      "access-control-request-method": "POST",
      "access-control-request-headers": asked,
    };
    return send(port, rpc, { method: "OPTIONS", headers });
  };

  it("lets the pages of the origins that are set call, and no others", async () => {
    const origins = "https://a.example,https://b.example";
    const { httpPort } = await startInProcess({ ...open, "--cors-origin": origins });
    const allowed = await preflight(httpPort, "https://b.example");
    expect(allowed).toMatchObject({
      status: 204,
      headers: {
        "access-control-allow-origin": "https://b.example",
        "access-control-allow-headers": "Content-Type,Idempotency-Key,traceparent",
        "access-control-allow-methods": "GET, HEAD, POST",
      },
    });
    const refused = await preflight(httpPort, "https://c.example");
    expect(refused.headers).not.toHaveProperty("access-control-allow-origin");
    for (const path of [rest, `${rest}/x`, rpc]) {
      const { headers } = await send(httpPort, path, { headers: { origin: "https://a.example" } });
      expect(headers["access-control-allow-origin"], path).toBe("https://a.example");
      expect(headers["access-control-expose-headers"], path).toMatch(/Link, Retry-After/);
      expect(headers.vary, path).toContain("Origin");
    }
  });

  it("says nothing unless it is set", async () => {
    const { httpPort } = await startInProcess(open);
    const { headers } = await preflight(httpPort, "https://a.example");
    expect(headers).not.toHaveProperty("access-control-allow-origin");
  });
});

describe("a service on loopback that asks for no credentials", () => {
  it("replies only to the names of this machine, and of the target in absolute form", async () => {
    const { httpPort } = await startInProcess();
    for (const host of ["localhost", `127.0.0.1:${httpPort}`, "[::1]:80", "LOCALHOST:1"]) {
      expect(await statusOf(httpPort, rest, { host }), host).toBe(200);
      expect(await statusOf(httpPort, `http://${host}${rest}`, { host: "evil.example" })).toBe(200);
    }
    for (const host of ["evil.example", "localhost.evil.example", "10.0.0.1", "::1", "["]) {
      expect(await statusOf(httpPort, rest, { host }), host).toBe(403);
      expect(await statusOf(httpPort, rpc, { host }), host).toBe(403);
      expect(await statusOf(httpPort, "/", { host }), host).toBe(403);
    }
    const target = "http://evil.example/healthz";
    expect(await statusOf(httpPort, target, { host: "localhost" })).toBe(403);
  });

  it("replies to the address that it listens on", async () => {
    const { httpPort } = await startInProcess({ "--host": "127.8.8.8" });
    for (const [host, status] of [
      ["127.8.8.8", 200],
      [`127.8.8.8:${httpPort}`, 200],
      ["localhost", 200],
      ["127.8.8.9", 403],
    ] as const) {
      const reply = await send(httpPort, rest, { host: "127.8.8.8", headers: { host } });
      expect(reply.status, host).toBe(status);
    }
  });

  it("refuses the pages of other sites unless their origin is set", async () => {
    const { httpPort } = await startInProcess({ "--cors-origin": "https://a.example" });
    const own = `127.0.0.1:${httpPort}`;
    for (const [headers, status] of [
      [{ origin: `http://${own}`, host: own }, 200],
      [{ origin: "https://a.example" }, 200],
      [{ "sec-fetch-site": "same-origin" }, 200],
      [{ origin: "https://evil.example" }, 403],
      [{ origin: "null" }, 403],
      [{ "sec-fetch-site": "cross-site" }, 403],
    ] as const) {
      expect(await statusOf(httpPort, rest, headers), JSON.stringify(headers)).toBe(status);
    }
  });
});

describe("behind a proxy that strips /investors", () => {
  const prefix = "/investors";

  /** Starts one on plain HTTP, as it is once TLS has ended before it. */
  async function startProxy(target: number, toHeaders: (host: string) => Record<string, string>) {
    const server = createServer((req, res) => {
      const { method, url = "", headers } = req;
      if (!url.startsWith(`${prefix}/`)) return void res.writeHead(404).end();
      const own = toHeaders(String(headers.host));
      const path = url.slice(prefix.length);
      const options = { port: target, method, path, headers: { ...headers, ...own } };
      const upstream = request(options, (reply) => {
        res.writeHead(reply.statusCode ?? 502, reply.headers);
        reply.pipe(res);
      });
      req.pipe(upstream);
    });
    server.listen(0, "127.0.0.1");
    onTestFinished(() => void server.close());
    await once(server, "listening");
    return (server.address() as AddressInfo).port;
  }

  it.each<[string, Record<string, string>, (host: string) => Record<string, string>]>([
    ["that keeps the host", open, () => ({})],
    ["that has a host of its own", open, () => ({ host: "backend.internal:8080" })],
    [
      "on this machine, with TLS before it",
      { "--cors-origin": "https://records.example" },
      (host) => ({ host: "localhost", "x-forwarded-host": host, "x-forwarded-proto": "https" }),
    ],
  ])("links, the reference page and openapi.json hold: one %s", async (_, flags, toHeaders) => {
    const { httpPort } = await startInProcess(flags);
    const proxyPort = await startProxy(httpPort, toHeaders);
    const base = `http://127.0.0.1:${proxyPort}${prefix}/`;
    const origin = "https://records.example";
    const headers = { "content-type": "application/json", origin };
    const body = JSON.stringify(institution);
    for (let i = 0; i < 5; i += 1) {
      const created = await fetch(new URL("v1/investors", base), { method: "POST", headers, body });
      expect(created.status).toBe(200);
    }

    const seen: unknown[] = [];
    let url: URL | undefined = new URL("v1/investors?pageSize=2", base);
    while (url) {
      const page: Response = await fetch(url);
      seen.push(...((await page.json()) as unknown[]));
      const [, next] = /^<([^>]+)>; rel="next"$/.exec(page.headers.get("link") ?? "") ?? [];
      url = next === undefined ? undefined : new URL(next, url);
    }
    expect(seen).toHaveLength(5);

    const page = await (await fetch(base)).text();
    const references = [...page.matchAll(/(?:src|href)="([^":]+)"/g)].map(([, path]) => path);
    expect(references).toContain("reference.js");
    for (const path of references) {
      expect((await fetch(new URL(String(path), base))).status, path).toBe(200);
    }
    const script = await (await fetch(new URL("reference.js", base))).text();
    const [, document = ""] = /url: "([^"]+)"/.exec(script) ?? [];
    const { servers, paths } = (await (await fetch(new URL(document, base))).json()) as {
      servers?: { url: string }[];
      paths: object;
    };
    const server = new URL(servers?.[0]?.url ?? "/", new URL(document, base));
    for (const path of Object.keys(paths)) {
      const { status } = await fetch(new URL(path.slice(1).replace("{id}", "none"), server));
      expect(status, path).toBe(path.includes("{id}") ? 404 : 200);
    }
  });
});
