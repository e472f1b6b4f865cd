import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { chromium, type Page } from "playwright-core";
import { expect, inject, it, onTestFinished } from "vitest";
import { temporaryFile } from "./support/folder.ts";
import { startInProcess } from "./support/server.ts";
import { ask, startService } from "./support/service.ts";
import { chromiumOptions, needs } from "./support/tools.ts";

const types = {
  "/": "text/html; charset=utf-8",
  "/reference.js": "text/javascript; charset=utf-8",
  "/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
  "/swagger-ui-bundle.js.LICENSE.txt": "text/plain; charset=utf-8",
  "/swagger-ui.css": "text/css; charset=utf-8",
};

it("the files of the reference page are built, and sent on this machine", async () => {
  const { port } = await startService();
  for (const [path, type] of Object.entries(types)) {
    const reply = await ask({ port }, path);
    expect(reply.status, path).toBe(200);
    const length = String((await reply.bytes()).length);
    expect(Object.fromEntries(reply.headers)).toMatchObject({
      "content-type": type,
      "content-length": length,
      "cache-control": "no-store",
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
    });
    const head = await ask({ port }, path, { method: "HEAD" });
    expect([head.headers.get("content-length"), await head.text()]).toEqual([length, ""]);
    const post = await ask({ port }, path, { method: "POST" });
    expect([post.status, post.headers.get("allow")]).toEqual([405, "GET, HEAD"]);
  }
  const licence = readFileSync(join(dirname(inject("bin")), "reference/LICENSE"), "utf8");
  expect(licence).toContain("Apache License");
});

it.each([
  [
    "with authentication",
    () => ({ "--auth-tokens-file": temporaryFile("backend 0123456789abcdef\n") }),
  ],
  ["beyond loopback", () => ({ "--host": "0.0.0.0", "--allow-insecure": "true" })],
])("the reference page is not there %s, and its document is", async (_, flagsOf) => {
  const { port } = await startInProcess(flagsOf());
  for (const path of Object.keys(types)) expect((await ask({ port }, path)).status).toBe(404);
  expect((await ask({ port }, "/openapi.json")).status).toBe(200);
});

it("the reference page may load and run nothing but what the service sends", async () => {
  const { port } = await startInProcess();
  const reply = await ask({ port }, "/");
  expect(reply.headers.get("content-security-policy")?.split("; ").toSorted()).toEqual([
    "base-uri 'none'",
    "connect-src 'self'",
    "default-src 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "img-src 'self' data:",
    "script-src 'self'",
    "style-src 'self'",
  ]);
  const page = await reply.text();
  const links = Array.from(page.matchAll(/(?:src|href)="([^"]*)"/g), ([, link]) => link);
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
