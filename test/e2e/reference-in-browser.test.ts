import { existsSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { type Browser, chromium, type Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startService } from "../support/service.ts";

const executablePath = (process.env.PATH ?? "")
  .split(delimiter)
  .flatMap((folder) => ["chromium", "google-chrome"].map((name) => join(folder, name)))
  .find((path) => existsSync(path));
if (executablePath === undefined) {
  console.warn("SKIPPED: the tests of the reference page, which need Chromium");
}

describe.skipIf(executablePath === undefined)("the reference page in Chromium", () => {
  const token = "0123456789abcdef0123456789abcdef";
  let browser: Browser;

  beforeAll(async () => {
    browser = await chromium.launch({
      ...(executablePath !== undefined && { executablePath }),
      chromiumSandbox: process.getuid?.() !== 0,
      args: ["--host-resolver-rules=MAP investors.example 127.0.0.1"],
    });
  });

  afterAll(() => browser?.close());

  /** Opens the page of an origin, and notes what else it talks to and what it complains of. */
  async function open(origin: string) {
    const page = await browser.newPage({ ignoreHTTPSErrors: true });
    onTestFinished(() => page.close());
    const complaints: string[] = [];
    const isElsewhere = (url: string) => !url.startsWith(`${origin}/`) && !url.startsWith("data:");
    page.on("console", (message) => complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("request", (request) => {
      if (isElsewhere(request.url())) complaints.push(request.url());
    });
    await page.goto(origin);
    return { page, complaints };
  }

  const operation = (page: Page, id: string) => page.locator(`.opblock[id$="-${id}"]`);

  /** Opens an operation, to be tried. */
  async function prepare(page: Page, id: string) {
    const block = operation(page, id);
    await block.locator(".opblock-summary-control").click();
    await block.getByRole("button", { name: "Try it out" }).click();
    return block;
  }

  /** Tries an operation with what the page has filled in. */
  async function execute(page: Page, id: string) {
    const block = operation(page, id);
    await block.getByRole("button", { name: "Execute" }).click();
    const response = block.locator(".live-responses-table tbody");
    const status = await response.locator(".response-col_status").first().textContent();
    const body = await response
      .locator("pre.microlight, .highlight-code pre")
      .first()
      .textContent();
    return { status: Number(status), body: JSON.parse(body ?? "") };
  }

  it.each([
    ["http", "127.0.0.1"],
    ["https", "localhost"],
  ])("shows and tries the operations by %s://%s", async (scheme, host) => {
    const folder = temporaryFolder();
    const tls = scheme === "https" && (await writeServerFiles(folder, await createAuthority()));
    const service = await startService({ ...tls }, folder);
    const { page, complaints } = await open(`${scheme}://${host}:${service.httpPort}`);
    await operation(page, "createInvestor").waitFor();
    expect(await page.locator(".opblock-summary-path").allTextContents()).toEqual([
      "/v1/investors",
      "/v1/investors",
      "/v1/investors/{id}",
    ]);

    const creation = await prepare(page, "createInvestor");
    expect(await creation.getByPlaceholder("Idempotency-Key").inputValue()).toBe("");
    const created = await execute(page, "createInvestor");
    expect(created).toMatchObject({
      status: 200,
      body: { id: expect.stringMatching(/^[0-9a-f-]{36}$/) },
    });
    await (await prepare(page, "getInvestor")).getByPlaceholder("id").fill(created.body.id);
    expect(await execute(page, "getInvestor")).toEqual(created);
    await prepare(page, "listInvestors");
    expect(await execute(page, "listInvestors")).toEqual({ status: 200, body: [created.body] });
    expect(complaints).toEqual([]);
  });

  it("tries the operations with a token, by any host", async () => {
    const folder = temporaryFolder();
    const tls = await writeServerFiles(folder, await createAuthority());
    writeFileSync(join(folder, "tokens"), `backend ${token}\n`);
    const service = await startService({ ...tls, AUTH_TOKENS_FILE: "tokens" }, folder);
    const { page, complaints } = await open(`https://investors.example:${service.httpPort}`);

    await prepare(page, "createInvestor");
    const refused = await execute(page, "createInvestor");
    expect(refused).toMatchObject({ status: 401, body: { reason: "CREDENTIALS_MISSING" } });
    // Chromium itself complains of the status.
    expect(complaints.splice(0)).toEqual([expect.stringContaining("status of 401")]);

    await page.getByRole("button", { name: "Authorize" }).click();
    const dialog = page.locator(".dialog-ux");
    await dialog.getByRole("textbox").fill(token);
    await dialog.getByRole("textbox").press("Enter");
    await dialog.getByRole("button", { name: "Close" }).last().click();
    await operation(page, "createInvestor").getByRole("button", { name: "Clear" }).click();
    const created = await execute(page, "createInvestor");
    expect(created).toMatchObject({
      status: 200,
      body: { id: expect.stringMatching(/^[0-9a-f-]{36}$/) },
    });
    expect(complaints).toEqual([]);
  });
});
