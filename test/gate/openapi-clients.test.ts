// Each generator is downloaded or compiled the first time, which takes minutes.
import { execFile } from "node:child_process";
import { cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { expect, it, type TestOptions } from "vitest";
import { root, toolPath } from "../support/clone.ts";
import { temporaryFolder } from "../support/folder.ts";
import { institution } from "../support/records.ts";
import { startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const execute = promisify(execFile);

/** Creates a record in TypeScript, as the callers of the other languages do. */
const caller = `
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.d.ts";

const body: components["schemas"]["InvestorContent"] = ${JSON.stringify(institution)};
const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });
const { data, error } = await client.POST("/v1/investors", { body });
if (data === undefined) throw new Error(error.reason);
console.log(data.type, data.lastName);
`;

/** How a client is generated and compiled, and one record created by it, in a folder with all it takes. */
const languages: [language: string, options: TestOptions, steps: string][] = [
  [
    "Java",
    needs("Maven"),
    `mkdir -p src/main/java
    cp CreateInvestor.java src/main/java
    mvn -q -B compile -Dopenapi=openapi.json
    mvn -q -B exec:java -Dexec.args=$ADDRESS`,
  ],
  [
    "TypeScript",
    {},
    `npm install --silent --prefer-offline openapi-typescript@7 openapi-fetch@0.17 typescript@5.9 @types/node@26
    node_modules/.bin/openapi-typescript openapi.json -o openapi.d.ts > /dev/null
    node_modules/.bin/tsc --strict --noEmit --module nodenext --target es2022 --skipLibCheck --allowImportingTsExtensions create-investor.mts
    node create-investor.mts $ADDRESS`,
  ],
];

for (const [language, options, steps] of languages) {
  it(
    `a client generated from openapi.json for ${language} compiles, and creates a record`,
    options,
    async () => {
      const folder = temporaryFolder();
      cpSync(join(root, "test/support/openapi-callers"), folder, { recursive: true });
      cpSync(join(root, "proto/investor/v1/openapi.json"), join(folder, "openapi.json"));
      writeFileSync(join(folder, "create-investor.mts"), caller);
      writeFileSync(join(folder, "package.json"), "{}");
      const { port } = await startService();
      const ADDRESS = `http://localhost:${port}`;
      const env = { ...process.env, PATH: toolPath, ADDRESS };
      const running = execute("bash", ["-euc", `exec 2>&1\n${steps}`], { cwd: folder, env });
      const { stdout } = await running.catch((error) => error);
      expect(stripVTControlCharacters(stdout)).toMatch(/^institution Example Capital$/m);
    },
  );
}
