import { execFile, spawnSync } from "node:child_process";
import { cpSync, globSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import { rolldown } from "rolldown";
import { describe, expect, it, onTestFinished, type TestOptions } from "vitest";
import { copyClone, root, toolPath } from "../support/clone.ts";
import { sharedFolder, temporaryFolder } from "../support/folder.ts";
import { aNew } from "../support/records.ts";
import { startService } from "../support/service.ts";
import { listen } from "../support/tcp.ts";
import { chromiumOptions, lacking, needs } from "../support/tools.ts";

const execute = promisify(execFile);
const env = { ...process.env, PATH: toolPath };

/** The oldest Node.js that the client is for, where it is installed. */
const oldest = (process.env.PATH ?? "")
  .split(delimiter)
  .filter((path) => !path.includes("node_modules"))
  .map((path) => join(path, "node"))
  .find((node) => {
    const { stdout } = spawnSync(node, ["--version"], { encoding: "utf8" });
    return /^v20\.(19|[2-9]\d)\./.test(stdout);
  });
const nodes: [name: string, path: string, options: TestOptions][] = [
  ["the Node.js of the project", process.execPath, {}],
  oldest === undefined ? ["Node.js 20", "", lacking("Node.js 20")] : ["Node.js 20", oldest, {}],
];

/** The code that the client's README shows. */
const [, recipe = ""] =
  /```ts\n([\s\S]*?)```/.exec(readFileSync(join(root, "client/README.md"), "utf8")) ?? [];

const caller = `
import { credentials, status } from "@grpc/grpc-js";
import { type Investor, InvestorService, InvestorType } from "investor-records-client";
import { type ErrorInfo, ErrorInfoSchema } from "investor-records-client/google/rpc";
import { createInvestorClient, InvestorError } from "investor-records-client/grpc";
import type { createInvestorClient as overConnect } from "investor-records-client/connect";

const client = createInvestorClient(process.argv[2] ?? "", credentials.createInsecure());

const text = {
  firstName: "", middleName: "", lastName: "Example Capital", addressLine1: "1 Main Street",
  addressLine2: "", city: "Springfield", state: "IL", zipCode: "62701", country: "us",
  language: "en",
};

async function main(): Promise<void> {
  const investor: Investor = await client.createInvestor({
    ...text, type: InvestorType.INSTITUTION, requestId: "01980f3c-5a00-7c3e-9b1f-6f1d2a4b8c0d",
  });
  const { investors } = await client.listInvestors({}, { timeoutMs: 10_000 });
  const error: unknown = await client.getInvestor({ id: "" }).catch((reason) => reason);
  if (!(error instanceof InvestorError)) throw error;
  const isInvalid: boolean = error.code === status.INVALID_ARGUMENT && error.codeName === "INVALID_ARGUMENT";
  const fields: string[] = error.violations.map(({ field }) => field);
  const info: Pick<ErrorInfo, "reason"> = { reason: error.reason ?? "" };
  console.log(
    InvestorService.typeName, ErrorInfoSchema.typeName, investor.lastName, investors.length > 0,
    isInvalid, info.reason, fields,
  );
  client.close();
}

export function misuse(connect: typeof overConnect): void {
  // @ts-expect-error
  connect("localhost:50051");
  // @ts-expect-error
  client.getInvestor({ id: 7 });
  const { city, ...rest } = { ...text, type: InvestorType.INSTITUTION };
  // @ts-expect-error
  client.createInvestor(rest);
  client.createInvestor({ ...rest, city });
  // @ts-expect-error
  client.createInvestor({ ...rest, city, lastname: "Example Capital" });
  // @ts-expect-error
  client.getInvestor({ id: "" }).then(({ nextPageToken }) => nextPageToken);
  // @ts-expect-error
  client.deleteInvestor({ id: "" });
}

main();
`;

/** Uses the package without grpc-js. */
const user = `
const request = protobuf.fromJson(client.GetInvestorRequestSchema, { id: "1" });
console.log(JSON.stringify(protobuf.toJson(client.GetInvestorRequestSchema, request)));
try {
  grpc.createInvestorClient("localhost:1", {});
} catch ({ message }) {
  console.log(message);
}
const proto = require.resolve("investor-records-client/investor.proto");
console.log(require("node:fs").readFileSync(proto, "utf8").includes("package investor.v1;"));
for (const end of ["", "_with_request_ids"]) {
  const config = require("investor-records-client/investor_grpc_service_config" + end + ".json");
  console.log(config.methodConfig.length);
}
console.log(typeof connect.createInvestorClient);
`;
const names = Object.entries({
  protobuf: "@bufbuild/protobuf",
  client: "investor-records-client",
  grpc: "investor-records-client/grpc",
  connect: "investor-records-client/connect",
});
const required = names.map(([name, path]) => `const ${name} = require("${path}");`);
const imported = names.map(([name, path]) => `import * as ${name} from "${path}";`);
const modules = `import { createRequire } from "node:module";
const require = createRequire(import.meta.url);`;

describe("the package", () => {
  const parent = sharedFolder();
  const [alone, beside] = [join(parent, "alone"), join(parent, "beside others")];

  it("brings one other, and is typed", async () => {
    copyClone(join(parent, "clone"), "client");
    mkdirSync(alone);
    writeFileSync(join(alone, "package.json"), "{}");
    const npm = (cwd: string, ...args: string[]) => execute("npm", args, { cwd, env });
    const install = (cwd: string, ...names: string[]) =>
      npm(cwd, "install", "--prefer-offline", ...names);
    await npm(alone, "pack", join(parent, "clone/client"));
    await install(alone, ...globSync("*.tgz", { cwd: alone }).map((name) => `./${name}`));
    const lock = JSON.parse(readFileSync(join(alone, "package-lock.json"), "utf8"));
    expect(Object.keys(lock.packages)).toEqual([
      "",
      "node_modules/@bufbuild/protobuf",
      "node_modules/investor-records-client",
    ]);
    writeFileSync(join(alone, "user.cjs"), [...required, user].join("\n"));
    writeFileSync(join(alone, "user.mjs"), [modules, ...imported, user].join("\n"));

    cpSync(alone, beside, { recursive: true });
    const write = (name: string, text: string) => writeFileSync(join(beside, name), text);
    await install(beside, "@grpc/grpc-js@1", "@connectrpc/connect@2", "typescript@5.9");
    for (const name of ["caller.mts", "caller.cts", "caller.ts"]) write(name, caller);
    write("client.mts", recipe.replace('"localhost:50051"', 'process.argv[2] ?? ""'));
    const project = (name: string, options: object, files: string[]) => {
      const compilerOptions = { target: "es2022", strict: true, types: ["node"], ...options };
      write(name, JSON.stringify({ compilerOptions, files }));
    };
    project("nodenext.json", { module: "nodenext" }, ["caller.mts", "caller.cts", "client.mts"]);
    const bundler = { module: "esnext", moduleResolution: "bundler", noEmit: true };
    project("bundler.json", bundler, ["caller.ts"]);
    for (const tsc of [join(root, "node_modules/.bin/tsc"), "node_modules/.bin/tsc"]) {
      for (const name of ["nodenext.json", "bundler.json"]) {
        const compiling = execute(tsc, ["-p", name], { cwd: beside });
        expect((await compiling.catch((error) => error)).stdout, `${tsc} ${name}`).toBe("");
      }
    }
  });

  for (const [name, node, options] of nodes) {
    it(`calls the service on ${name}, as an ES module and by require`, options, async () => {
      const run = async (cwd: string, ...args: string[]) =>
        (await execute(node, args, { cwd })).stdout;
      for (const file of ["user.cjs", "user.mjs"]) {
        expect((await run(alone, file)).trim().split("\n"), file).toEqual([
          '{"id":"1"}',
          "createInvestorClient needs @grpc/grpc-js: npm install @grpc/grpc-js",
          "true",
          "2",
          "1",
          "function",
        ]);
      }
      const address = `localhost:${(await startService()).grpcPort}`;
      for (const file of ["caller.mjs", "caller.cjs"]) {
        expect(await run(beside, file, address), file).toBe(
          "investor.v1.InvestorService google.rpc.ErrorInfo Example Capital true " +
            "true INVALID_FIELDS [ 'id' ]\n",
        );
      }
      expect(await run(beside, "client.mjs", address)).toContain("lastName: 'Example Capital'");
    });
  }
});

/** What a page does with the package, and shows when it is done. */
const pageScript = `
import { createConnectTransport } from "@connectrpc/connect-web";
import { createInvestorClient } from "investor-records-client/connect";

const client = createInvestorClient(createConnectTransport({ baseUrl: "BASE" }));
const { id } = await client.createInvestor(CONTENT);
const { lastName } = await client.getInvestor({ id });
const { message } = await client.getInvestor({ id: "" }).catch((error) => error);
let count = 0;
for await (const investor of client.investors()) count += 1;
document.title = [lastName, count, message].join();
`;

it("the package works in a browser, from a page of another origin", needs("Chromium"), async () => {
  const folder = temporaryFolder();
  const clone = temporaryFolder();
  copyClone(clone, "client");
  const npm = (...args: string[]) => execute("npm", args, { cwd: folder, env });
  writeFileSync(join(folder, "package.json"), "{}");
  await npm("pack", join(clone, "client"));
  const [packed = ""] = globSync("*.tgz", { cwd: folder });
  const connect = ["@connectrpc/connect@2", "@connectrpc/connect-web@2"];
  await npm("install", "--prefer-offline", `./${packed}`, ...connect);

  let script = "";
  const port = await listen(
    createServer(({ url }, res) => {
      res.setHeader("content-type", url === "/" ? "text/html" : "text/javascript");
      res.end(url === "/" ? `<script type="module" src="/page.js"></script>` : script);
    }),
  );
  const origin = `http://localhost:${port}`;
  const { httpPort } = await startService({ CORS_ORIGIN: origin });
  const text = pageScript
    .replace("BASE", `http://localhost:${httpPort}`)
    .replace("CONTENT", JSON.stringify(aNew()));
  writeFileSync(join(folder, "page.js"), text);
  const bundle = await rolldown({ cwd: folder, input: "page.js", platform: "browser" });
  const { output } = await bundle.generate();
  script = output[0].code;

  const browser = await chromium.launch(chromiumOptions());
  onTestFinished(() => browser.close());
  const page = await browser.newPage();
  await page.goto(origin);
  await expect
    .poll(() => page.title())
    .toMatch(/^Lovelace,1,INVALID_ARGUMENT \(INVALID_FIELDS\): id is required$/);
});
