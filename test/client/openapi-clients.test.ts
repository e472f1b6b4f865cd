import { execFile, spawnSync } from "node:child_process";
import { globSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { root, toolPath } from "../examples/clone.ts";
import { temporaryFolder } from "../support/folder.ts";
import { institution } from "../support/records.ts";
import { startService } from "../support/service.ts";

const execute = promisify(execFile);
const document = join(root, "proto/investor/v1/openapi.json");

/** What a caller prints: the ids that its calls returned. */
interface Ids {
  created: string;
  again: string;
  got: string;
  listed: string[];
}

/** Compiles a caller beside its generated client, and runs it against a service. */
async function runCaller(folder: string, compilerOptions: object, source: string): Promise<Ids> {
  const { httpPort } = await startService();
  writeFileSync(
    join(folder, "caller.ts"),
    `const baseUrl = "http://localhost:${httpPort}", key = "${v7()}";
    const content = ${JSON.stringify(institution)} as const;
    ${source}`,
  );
  const options = { target: "es2024", strict: true, skipLibCheck: true, ...compilerOptions };
  const project = { compilerOptions: { outDir: "out", types: [], ...options } };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(project));
  const { stdout: faults } = await execute(join(root, "node_modules/.bin/tsc"), ["-p", folder], {
    cwd: folder,
  }).catch((error) => error);
  expect(faults).toBe("");
  const { stdout } = await execute(process.execPath, ["out/caller.js"], { cwd: folder });
  return JSON.parse(stdout);
}

/** Both creates had the same key, so that there is one record. */
function expectOneRecord({ created, again, got, listed }: Ids): void {
  expect(created).toMatch(/^[0-9a-f-]{36}$/);
  expect({ again, got, listed }).toEqual({ again: created, got: created, listed: [created] });
}

it("openapi-typescript makes a client that sends the key", { timeout: 180_000 }, async () => {
  const folder = temporaryFolder();
  const options = { cwd: folder, env: { ...process.env, PATH: toolPath } };
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  const names = ["openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9"];
  await execute("npm", ["install", "--prefer-offline", ...names], options);
  await execute("npx", ["openapi-typescript", document, "-o", "schema.d.ts"], options);
  const ids = await runCaller(
    folder,
    { module: "nodenext", lib: ["es2024", "dom"] },
    `
    import createClient from "openapi-fetch";
    import type { paths } from "./schema.d.ts";
    const client = createClient<paths>({ baseUrl });
    const create = () =>
      client.POST("/v1/investors", {
        params: { header: { "Idempotency-Key": key } },
        body: content,
      });
    const created = (await create()).data?.id ?? "";
    const again = (await create()).data?.id;
    const got = await client.GET("/v1/investors/{id}", { params: { path: { id: created } } });
    const list = await client.GET("/v1/investors", { params: { query: { pageSize: 10 } } });
    console.log(JSON.stringify({
      created, again, got: got.data?.id, listed: list.data?.map(({ id }) => id),
    }));`,
  );
  expectOneRecord(ids);
});

const version = "7.25.0";

/** The generator's jar, as Maven fetches it; undefined where it cannot. */
function findGenerator(): string | undefined {
  const artifact = `-Dartifact=org.openapitools:openapi-generator-cli:${version}`;
  const args = ["-q", "-B", "dependency:get", "-Dtransitive=false", artifact];
  if (spawnSync("mvn", args, { stdio: "ignore" }).status !== 0) {
    console.warn("SKIPPED: openapi-generator, without Maven or its repository");
    return undefined;
  }
  const path = `.m2/repository/org/openapitools/openapi-generator-cli/${version}/*.jar`;
  return globSync(path, { cwd: homedir() }).map((each) => join(homedir(), each))[0];
}

it("openapi-generator makes a client that sends the key", { timeout: 180_000 }, async ({
  skip,
}) => {
  const jar = findGenerator();
  if (jar === undefined) return skip();
  const folder = temporaryFolder();
  const args = ["-jar", jar, "generate", "-g", "typescript-fetch", "-i", document, "-o", folder];
  await execute("java", args);
  const ids = await runCaller(
    folder,
    { module: "commonjs", moduleResolution: "bundler", lib: ["es2024", "dom"] },
    `
    import { Configuration, InvestorsApi } from "./index";
    const client = new InvestorsApi(new Configuration({ basePath: baseUrl }));
    async function main() {
      const request = { idempotencyKey: key, investorContent: content };
      const created = await client.createInvestor(request);
      const again = await client.createInvestor(request);
      const got = await client.getInvestor({ id: created.id });
      const list = await client.listInvestors({ pageSize: 10 });
      console.log(JSON.stringify({
        created: created.id, again: again.id, got: got.id, listed: list.map(({ id }) => id),
      }));
    }
    main();`,
  );
  expectOneRecord(ids);
});
