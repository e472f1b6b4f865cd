/** Which web pages may call. */
import { once } from "node:events";
import { type IncomingMessage, type RequestOptions, request } from "node:http";
import { describe, expect, it } from "vitest";
import { messages, paths, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { startInProcess } from "./support/server.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";

const rpc = paths.get;
const rest = "/v1/investors";

async function send(port: number, path: string, options: RequestOptions) {
  const req = request({ ...options, port, path }).end();
  const [res] = (await once(req, "response")) as [IncomingMessage];
  res.resume();
  return { status: res.statusCode, headers: res.headers };
}

async function statusOf(port: number, path: string, headers: Record<string, string>) {
  return (await send(port, path, { headers })).status;
}

it("lets the pages of the origins that are set call, and no others", async () => {
  const origins = "https://a.example,https://b.example";
  const anyHost = { "--host": "0.0.0.0", "--allow-insecure": "true" };
  const { port } = await startInProcess({ ...anyHost, "--cors-origin": origins });
  const preflight = (origin: string) => {
    const asked = { "access-control-request-method": "POST" };
    const headers = { origin, ...asked, "access-control-request-headers": "traceparent" };
    return send(port, rpc, { method: "OPTIONS", headers });
  };
  const { status, headers } = await preflight("https://b.example");
  expect(status).toBe(204);
  expect(headers).toMatchObject({
    "access-control-allow-origin": "https://b.example",
    "access-control-allow-headers": "traceparent",
    "access-control-allow-methods": "GET, HEAD, POST",
    "access-control-max-age": "7200",
  });
  const refused = await preflight("https://c.example");
  expect(refused.headers).not.toHaveProperty("access-control-allow-origin");
  for (const path of [rest, `${rest}/x`, rpc]) {
    const { headers } = await send(port, path, { headers: { origin: "https://a.example" } });
    expect(headers["access-control-allow-origin"], path).toBe("https://a.example");
    expect(headers["access-control-expose-headers"], path).toMatch(/Link, Retry-After/);
    expect(headers.vary, path).toContain("Origin");
  }
});

describe("a service on loopback that asks for no credentials", () => {
  it("replies only to the names of this machine, and of the target in absolute form", async () => {
    const { port } = await startInProcess();
    for (const host of ["localhost", `127.0.0.1:${port}`, "[::1]:80", "LOCALHOST:1"]) {
      expect(await statusOf(port, rest, { host }), host).toBe(200);
      expect(await statusOf(port, `http://${host}${rest}`, { host: "evil.example" })).toBe(200);
    }
    for (const host of ["evil.example", "localhost.evil.example", "10.0.0.1", "::1", "["]) {
      expect(await statusOf(port, rest, { host }), host).toBe(403);
      expect(await statusOf(port, rpc, { host }), host).toBe(403);
      expect(await statusOf(port, "/", { host }), host).toBe(403);
    }
    const call = rawCall(rawConnection(port), rpc, messages.empty, {
      ":authority": "evil.example",
    });
    expect((await call).reason).toBe("CROSS_ORIGIN");
    const target = `http://evil.example${rest}`;
    expect(await statusOf(port, target, { host: "localhost" })).toBe(403);
  });

  it("replies to probes that name no host, or any", async () => {
    const { port } = await startInProcess();
    for (const path of ["/healthz", "/readyz"]) {
      // As HAProxy asks.
      const { closed } = openWire(port, `GET ${path} HTTP/1.0\r\n\r\n`);
      expect(statusesIn(await closed)).toEqual([200]);
      expect(await statusOf(port, path, { host: "10.1.2.3" })).toBe(200);
    }
  });

  it("replies to health checks and reflection under any authority", async () => {
    const { port } = await startInProcess();
    // The last one could be no host of a URL.
    for (const host of ["envoy_cluster", "cluster.v1.2"]) {
      for (const path of [paths.check, paths.reflect]) {
        const call = rawCall(rawConnection(port), path, messages.empty, { ":authority": host });
        expect((await call).status, host).toBe(0);
      }
      for (const type of ["application/json", "application/json; charset=utf-8"]) {
        const health = http1("POST", paths.check, { host, "content-type": type }, "{}");
        await expect.poll(openWire(port, health).received).toMatch(/^HTTP\/1\.1 200 /);
      }
      expect(await statusOf(port, rpc, { host })).toBe(403);
    }
  });

  it("replies to the address that it listens on", async () => {
    const { port } = await startInProcess({ "--host": "127.8.8.8" });
    const statusFor = async (host: string) =>
      (await send(port, rest, { host: "127.8.8.8", headers: { host } })).status;
    for (const host of ["127.8.8.8", `127.8.8.8:${port}`, "localhost"]) {
      expect(await statusFor(host), host).toBe(200);
    }
    expect(await statusFor("127.8.8.9")).toBe(403);
  });

  it("refuses the pages of other sites unless their origin is set", async () => {
    const { port } = await startInProcess({ "--cors-origin": "https://a.example" });
    const host = `127.0.0.1:${port}`;
    for (const [headers, status] of [
      [{ origin: `http://${host}`, host }, 200],
      [{ origin: "https://a.example" }, 200],
      [{ "sec-fetch-site": "same-origin" }, 200],
      [{ origin: "null" }, 403],
      [{ "sec-fetch-site": "cross-site" }, 403],
    ] as const) {
      expect(await statusOf(port, rest, headers), JSON.stringify(headers)).toBe(status);
    }
  });

  it("logs the origin of a page that it refuses, and no header that is none", async () => {
    const { port, lines } = await startInProcess();
    expect(await statusOf(port, rest, { origin: "https://evil.example" })).toBe(403);
    expect(await statusOf(port, rest, { origin: '{"lastName":"Lovelace"}' })).toBe(403);
    const refused = lines.filter(({ msg }) => msg === "refused");
    expect(refused).toMatchObject([
      { level: 40, reason: "CROSS_ORIGIN", origin: "https://evil.example" },
      { level: 40, reason: "CROSS_ORIGIN" },
    ]);
    expect(JSON.stringify(lines)).not.toContain("Lovelace");
  });
});
