import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { root, toolPath } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";

const execute = promisify(execFile);
const document = join(root, "proto/investor/v1/openapi.json");

const caller = (port: number) => `
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";
const client = createClient<paths>({ baseUrl: "http://localhost:${port}" });
const create = () =>
  client.POST("/v1/investors", {
    params: { header: { "Idempotency-Key": "${v7()}" } },
    body: ${JSON.stringify(institution)},
  });
const created = (await create()).data?.id ?? "";
const again = (await create()).data?.id;
const got = await client.GET("/v1/investors/{id}", { params: { path: { id: created } } });
const list = await client.GET("/v1/investors", { params: { query: { pageSize: 10 } } });
console.log(JSON.stringify([created, again, got.data?.id, ...list.data?.map(({ id }) => id) ?? []]));
`;

it("openapi-typescript makes a typed client that sends the key", { timeout: 180_000 }, async () => {
  const { httpPort } = await startInProcess();
  const folder = temporaryFolder();
  const options = { cwd: folder, env: { ...process.env, PATH: toolPath } };
  const compilerOptions = {
    ...{ target: "es2024", module: "nodenext", lib: ["es2024", "dom"], types: [] },
    ...{ strict: true, skipLibCheck: true, outDir: "out" },
  };
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions }));
  writeFileSync(join(folder, "caller.ts"), caller(httpPort));
  const names = ["openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9"];
  await execute("npm", ["install", "--prefer-offline", ...names], options);
  await execute("npx", ["openapi-typescript", document, "-o", "schema.d.ts"], options);
  const tsc = execute("npx", ["tsc"], options).catch((error) => error);
  expect((await tsc).stdout).toBe("");
  const { stdout } = await execute(process.execPath, ["out/caller.js"], options);
  const ids = JSON.parse(stdout);
  expect(ids).toEqual(Array(4).fill(expect.stringMatching(/^[0-9a-f-]{36}$/)));
  expect(new Set(ids).size).toBe(1);
});
