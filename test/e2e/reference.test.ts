import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { type IncomingMessage, request } from "node:http";
import { join, resolve } from "node:path";
import { buffer } from "node:stream/consumers";
import { gunzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { lockDatabase, type Service, startService, waitFor } from "../support/service.ts";
import { copySources } from "../support/sources.ts";

const root = resolve(import.meta.dirname, "../..");
const paths = [
  ["/", "text/html; charset=utf-8"],
  ["/reference.js", "text/javascript; charset=utf-8"],
  ["/swagger-ui-bundle.js", "text/javascript; charset=utf-8"],
  ["/swagger-ui-bundle.js.LICENSE.txt", "text/plain; charset=utf-8"],
  ["/swagger-ui.css", "text/css; charset=utf-8"],
] as const;

/** Requests a path by HTTP/1.1, and leaves the body as it was sent. */
async function send({ httpPort: port }: Service, path: string, headers = {}, method = "GET") {
  const req = request({ port, path, method, headers }).end();
  const [res] = (await once(req, "response")) as [IncomingMessage];
  return { status: res.statusCode, headers: res.headers, body: await buffer(res) };
}

/** The package as npm installs it, without the files that it was built from. */
function installPackage(): string {
  const folder = temporaryFolder();
  const source = join(folder, "source");
  copySources(source);
  execFileSync("npm", ["pack", "--silent", "--pack-destination", folder], { cwd: source });
  execFileSync("sh", ["-c", "tar -xzf *.tgz && rm -r source"], { cwd: folder });
  mkdirSync(join(folder, "node_modules"));
  const { dependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  for (const name of Object.keys(dependencies)) {
    const link = join(folder, "node_modules", name);
    mkdirSync(resolve(link, ".."), { recursive: true });
    symlinkSync(join(root, "node_modules", name), link);
  }
  return join(folder, "package");
}

describe("the reference page", () => {
  it("is served with its scripts and styles, compressed for those who accept it", async () => {
    const service = await startService();
    for (const [path, type] of paths) {
      const plain = await send(service, path);
      expect(plain.status).toBe(200);
      expect(plain.headers).toMatchObject({
        "content-type": type,
        "content-length": String(plain.body.length),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        vary: expect.stringContaining("Accept-Encoding"),
      });
      for (const encodings of ["gzip", "br, deflate, gzip"]) {
        const packed = await send(service, path, { "accept-encoding": encodings });
        expect(packed.headers).toMatchObject({ "content-encoding": "gzip" });
        expect(gunzipSync(packed.body).equals(plain.body)).toBe(true);
      }
      const refused = await send(service, path, { "accept-encoding": "gzip;q=0, identity" });
      expect(refused.headers).not.toHaveProperty("content-encoding");
      expect(refused.body.equals(plain.body)).toBe(true);
    }
  });

  it("lets the page run and load nothing but what the service sends", async () => {
    const service = await startService();
    const { headers, body } = await send(service, "/");
    expect(String(headers["content-security-policy"]).split("; ").toSorted()).toEqual([
      "base-uri 'none'",
      "connect-src 'self'",
      "default-src 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
      "img-src 'self' data:",
      "script-src 'self'",
      "style-src 'self'",
    ]);
    const links = Array.from(
      body.toString().matchAll(/(?:src|href)="([^"]*)"/g),
      ([, each]) => each,
    );
    expect(links).toEqual(["data:,", "swagger-ui.css", "swagger-ui-bundle.js", "reference.js"]);
  });

  it("is not sent again to those who have it", async () => {
    const service = await startService();
    for (const [path] of paths) {
      const { etag } = (await send(service, path)).headers;
      const kept = await send(service, path, { "if-none-match": `"other", ${etag}` });
      expect([kept.status, kept.body.length]).toEqual([304, 0]);
      expect(kept.headers).toMatchObject({ etag, "cache-control": "no-cache" });
      expect((await send(service, path, { "if-none-match": '"other"' })).status).toBe(200);
    }
  });

  it("replies to HEAD as to GET, and refuses other methods", async () => {
    const service = await startService();
    for (const [path] of paths) {
      const { date: _, ...headers } = (await send(service, path)).headers;
      const head = await send(service, path, {}, "HEAD");
      expect([head.status, head.body.length]).toEqual([200, 0]);
      expect(head.headers).toMatchObject(headers);
      for (const method of ["POST", "PUT", "DELETE", "OPTIONS"]) {
        const refused = await send(service, path, {}, method);
        expect(refused.status, method).toBe(405);
        expect(refused.headers).toMatchObject({ allow: "GET, HEAD" });
      }
    }
  });

  it("asks for no credentials, and takes no slot", async () => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "tokens"), "backend 0123456789abcdef0123456789abcdef\n");
    const guarded = await startService({ AUTH_TOKENS_FILE: "tokens" }, folder);
    expect((await send(guarded, "/")).status).toBe(200);

    const service = await startService({ MAX_IN_FLIGHT: "1" });
    const unlock = lockDatabase(service);
    const created = fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({
        ...{ type: "individual", firstName: "Ada", middleName: "", lastName: "Lovelace" },
        ...{ addressLine1: "", addressLine2: "", city: "", state: "", zipCode: "" },
        ...{ country: "gb", language: "en" },
      }),
    });
    try {
      const refused = () => send(service, "/v1/investors/x");
      await waitFor(async () => (await refused()).status === 503);
      for (const [path] of paths) expect((await send(service, path)).status, path).toBe(200);
    } finally {
      unlock();
    }
    expect((await created).status).toBe(200);
  });

  it("is whole in the package, with its licences and without swagger-ui-dist", async () => {
    const folder = installPackage();
    const packed = await startService({}, temporaryFolder(), join(folder, "dist/bin.js"));
    const service = await startService();
    for (const [path] of paths) {
      const [there, here] = await Promise.all([send(packed, path), send(service, path)]);
      expect(there.status, path).toBe(200);
      expect(there.body.equals(here.body), path).toBe(true);
    }
    const licence = readFileSync(join(folder, "dist/reference/LICENSE"), "utf8");
    expect(licence).toContain("Apache License");
  });
});
