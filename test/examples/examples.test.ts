import { readFileSync } from "node:fs";
import { join } from "node:path";
import { version } from "uuid";
import { expect, it } from "vitest";
import { copy } from "../support/copying.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startService } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";
import { root } from "./clone.ts";
import { exampleTimeoutMs, tryExample } from "./example.ts";

const title = "%s: the example runs as printed, and ends at its deadline";

it.each(["TypeScript with grpc-js", "TypeScript with Connect"])(
  title,
  tryExample,
  exampleTimeoutMs,
);

it.skipIf(!hasTool("python3", ["--version"])).each(["Python"])(title, tryExample, exampleTimeoutMs);

it.skipIf(!hasTool("go", ["version"])).each(["Go"])(title, tryExample, exampleTimeoutMs);

it("investors.ndjson is imported and served as it is", async () => {
  const folder = temporaryFolder();
  const file = join(root, "examples/investors.ndjson");
  const copied = await copy([file, "sqlite:investors.db"], { folder });
  expect(copied, copied.told).toMatchObject({ code: 0 });
  const { httpPort } = await startService({ DATABASE_URL: "sqlite:investors.db" }, folder);
  const response = await fetch(`http://localhost:${httpPort}/v1/investors`);
  const records = readFileSync(file, "utf8").trim().split("\n");
  expect(await response.json()).toEqual(records.map((line) => JSON.parse(line)));
  expect(records).toHaveLength(20);
  for (const line of records) expect(version(JSON.parse(line).id), line).toBe(7);
});
