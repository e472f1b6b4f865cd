import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type IncomingMessage, request } from "node:http";
import { dirname, join } from "node:path";
import { buffer } from "node:stream/consumers";
import { chromium, type Page } from "playwright-core";
import { expect, inject, it, onTestFinished } from "vitest";
import { temporaryFile } from "./support/folder.ts";
import { startInProcess } from "./support/server.ts";
import { startService } from "./support/service.ts";
import { chromiumOptions, needs } from "./support/tools.ts";

const token = "0123456789abcdef0123456789abcdef";
const types = {
  "/": "text/html; charset=utf-8",
  "/reference.js": "text/javascript; charset=utf-8",
  "/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
  "/swagger-ui-bundle.js.LICENSE.txt": "text/plain; charset=utf-8",
  "/swagger-ui.css": "text/css; charset=utf-8",
};
/** Requests a path, and leaves the body as it was sent. */
async function send(port: number, path: string, headers = {}, method = "GET") {
  const req = request({ port, path, method, headers }).end();
  const [res] = (await once(req, "response")) as [IncomingMessage];
  return { status: res.statusCode, headers: res.headers, body: await buffer(res) };
}

it("the files of the reference page are built, and sent on this machine", async () => {
  const { port } = await startService();
  for (const [path, type] of Object.entries(types)) {
    const { status, headers, body } = await send(port, path);
    expect(status, path).toBe(200);
    expect(headers).toMatchObject({
      "content-type": type,
      "content-length": String(body.length),
      "cache-control": "no-store",
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
    });
    const head = await send(port, path, {}, "HEAD");
    expect([head.headers["content-length"], head.body.length]).toEqual([String(body.length), 0]);
    const post = await send(port, path, {}, "POST");
    expect([post.status, post.headers.allow]).toEqual([405, "GET, HEAD"]);
  }
  const licence = readFileSync(join(dirname(inject("bin")), "reference/LICENSE"), "utf8");
  expect(licence).toContain("Apache License");
});

it.each([
  ["with authentication", () => ({ "--auth-tokens-file": temporaryFile(`backend ${token}\n`) })],
  ["beyond loopback", () => ({ "--host": "0.0.0.0", "--allow-insecure": "true" })],
])("the reference page is not there %s, and its document is", async (_, flagsOf) => {
  const { port } = await startInProcess(flagsOf());
  for (const path of Object.keys(types)) expect((await send(port, path)).status).toBe(404);
  expect((await send(port, "/openapi.json")).status).toBe(200);
});

it("the reference page may load and run nothing but what the service sends", async () => {
  const { port } = await startInProcess();
  const { headers, body } = await send(port, "/");
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
  const links = Array.from(body.toString().matchAll(/(?:src|href)="([^"]*)"/g), ([, link]) => link);
  expect(links).toEqual(["data:,", "swagger-ui.css", "swagger-ui-bundle.js", "reference.js"]);
});

/** Creates the record that the page has filled in. */
async function tryOut(page: Page) {
  const block = page.locator('.opblock[id$="-createInvestor"]');
  const press = (name: string) => block.getByRole("button", { name }).click();
  await block.locator(".opblock-summary-control").click();
  await press("Try it out");
  await press("Execute");
  const reply = block.locator(".live-responses-table tbody");
  const status = await reply.locator(".response-col_status").first().textContent();
  const body = await reply.locator("pre.microlight, .highlight-code pre").first().textContent();
  return { status: Number(status), body: JSON.parse(body ?? "") };
}

it("a browser shows the reference page, and calls by it", needs("Chromium"), async () => {
  const { port } = await startInProcess();
  const base = `http://localhost:${port}/`;
  const browser = await chromium.launch(chromiumOptions());
  onTestFinished(() => browser.close());
  const page = await browser.newPage();
  const complaints: string[] = [];
  page.on("console", (message) => complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("request", (each) => {
    if (!/^data:/.test(each.url()) && !each.url().startsWith(base)) complaints.push(each.url());
  });
  await page.goto(base);
  expect(await tryOut(page)).toMatchObject({ status: 200, body: { id: expect.any(String) } });
  expect(complaints).toEqual([]);
});
