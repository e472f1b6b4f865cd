import { execFile, spawnSync } from "node:child_process";
import { cpSync, globSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import { chromium } from "playwright-core";
import { rolldown } from "rolldown";
import { describe, expect, it, onTestFinished, type TestOptions } from "vitest";
import { copyClone, foreignPath, root } from "../support/clone.ts";
import { sharedFolder } from "../support/folder.ts";
import { aNew } from "../support/records.ts";
import { startService } from "../support/service.ts";
import { listen } from "../support/tcp.ts";
import { chromiumOptions, lacking, needs } from "../support/tools.ts";

const execute = promisify(execFile);
const { env } = process;

/** The oldest Node.js that the client is for, where it is installed. */
const oldest = foreignPath
  .split(delimiter)
  .map((path) => join(path, "node"))
  .find((node) => {
    const { stdout } = spawnSync(node, ["--version"], { encoding: "utf8" });
    return /^v20\.(19|[2-9]\d)\./.test(stdout);
  });
const nodes: [name: string, path: string, options: TestOptions][] = [
  ["the Node.js of the project", process.execPath, {}],
  oldest === undefined
    ? ["Node.js 20", "", lacking("Node.js 20: a node in the PATH that is 20.19 or a later 20")]
    : ["Node.js 20", oldest, {}],
];

const page = readFileSync(join(root, "client/README.md"), "utf8");

/** The code that the client's README shows. */
const [, recipe = ""] = /```ts\n([\s\S]*?)```/.exec(page) ?? [];
/** The packages of Connect for Node.js 20 that it names. */
const connectPackages = page.match(/@connectrpc\/[\w-]+@[\d.]+/g) ?? [];

const caller = `
import { credentials, status } from "@grpc/grpc-js";
import { type Investor, InvestorService, InvestorType } from "investor-records-client";
import { type ErrorInfo, ErrorInfoSchema } from "investor-records-client/google/rpc";
import { createInvestorClient, InvestorError } from "investor-records-client/grpc";

const client = createInvestorClient(process.argv[2] ?? "", credentials.createInsecure());

const required = { type: InvestorType.INSTITUTION, country: "us", language: "en" };

async function main(): Promise<void> {
  const first: Investor = await client.createInvestor({
    ...required, lastName: "Example Capital", requestId: "01980f3c-5a00-7c3e-9b1f-6f1d2a4b8c0d",
  });
  const investor: Investor = await client.createInvestor(first);
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

export function misuse(): void {
  const { country, ...rest } = required;
  // @ts-expect-error
  client.createInvestor(rest);
  client.createInvestor({ ...rest, country, city: undefined, requestId: undefined });
  // @ts-expect-error
  client.createInvestor({ ...rest, country: undefined });
  // @ts-expect-error
  client.createInvestor({ ...required, lastname: "Example Capital" });
}

main();
`;

/** Uses the package without its peers. */
const user = `
const protobuf = require("@bufbuild/protobuf");
const client = require("investor-records-client");
const connect = require("investor-records-client/connect");
const request = protobuf.fromJson(client.GetInvestorRequestSchema, { id: "1" });
console.log(JSON.stringify(protobuf.toJson(client.GetInvestorRequestSchema, request)));
const proto = require.resolve("investor-records-client/investor.proto");
console.log(require("node:fs").readFileSync(proto, "utf8").includes("package investor.v1;"));
for (const end of ["", "_with_request_ids"]) {
  const config = require("investor-records-client/investor_grpc_service_config" + end + ".json");
  console.log(config.methodConfig.length);
}
console.log(typeof connect.createInvestorClient);
try {
  require("investor-records-client/grpc");
} catch ({ message }) {
  console.log(message.split("\\n")[0]);
}
`;

/** Lets a module require. */
const modules = `import { createRequire } from "node:module";
const require = createRequire(import.meta.url);`;

/** Compares what `import` and `require` give, and what the parts of the package share. */
const same = `
import * as messages from "investor-records-client";
import * as rpc from "investor-records-client/google/rpc";
import * as grpc from "investor-records-client/grpc";
import * as connect from "investor-records-client/connect";
${modules}

const paths = ["", "/google/rpc", "/grpc", "/connect"];
for (const [i, imported] of [messages, rpc, grpc, connect].entries()) {
  const required = require("investor-records-client" + paths[i]);
  const names = Object.keys(required).filter((name) => required[name] !== imported[name]);
  console.log(Object.keys(required).length > 1, names.length);
}
console.log(grpc.InvestorError === connect.InvestorError);
`;

/** A test of Jest, which knows no modules. */
const jestTest = `
const { credentials } = require("@grpc/grpc-js");
const { createConnectTransport } = require("@connectrpc/connect-node");
const { InvestorType } = require("investor-records-client");
const { createInvestorClient, InvestorError } = require("investor-records-client/grpc");
const connect = require("investor-records-client/connect");

test("calls, and knows its errors", async () => {
  const baseUrl = process.env.HTTP_ADDRESS;
  const clients = [
    createInvestorClient(process.env.GRPC_ADDRESS, credentials.createInsecure()),
    connect.createInvestorClient(createConnectTransport({ baseUrl, httpVersion: "1.1" })),
  ];
  for (const client of clients) {
    await expect(client.getInvestor({ id: "" })).rejects.toBeInstanceOf(InvestorError);
    const { investors } = await client.listInvestors();
    expect(investors[0].type).toBe(InvestorType.INSTITUTION);
    client.close();
  }
});
`;

/** What the fetch of Node.js cannot do, by the transport for browsers. */
const fetchCaller = `
import { createConnectTransport } from "@connectrpc/connect-web";
import { createInvestorClient } from "investor-records-client/connect";

for (const baseUrl of process.argv.slice(2)) {
  const client = createInvestorClient(createConnectTransport({ baseUrl }));
  const { message } = await client.getInvestor({ id: "1" }).catch((error) => error);
  console.log(message);
}
`;

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

describe("the package", () => {
  const parent = sharedFolder();
  const [alone, beside] = [join(parent, "alone"), join(parent, "beside others")];
  const inPlace = { cwd: beside, env };
  const write = (name: string, text: string) => writeFileSync(join(beside, name), text);
  const bin = (name: string) => join(beside, "node_modules/.bin", name);
  let packed = "";

  it("brings one other, and is typed for each kind of project", async () => {
    copyClone(join(parent, "clone"), "client");
    mkdirSync(alone);
    writeFileSync(join(alone, "package.json"), "{}");
    const npm = (cwd: string, ...args: string[]) => execute("npm", args, { cwd, env });
    const install = (cwd: string, ...names: string[]) =>
      npm(cwd, "install", "--prefer-offline", ...names);
    await npm(alone, "pack", join(parent, "clone/client"));
    [packed = ""] = globSync("*.tgz", { cwd: alone });
    await install(alone, `./${packed}`);
    const lock = JSON.parse(readFileSync(join(alone, "package-lock.json"), "utf8"));
    expect(Object.keys(lock.packages)).toEqual([
      "",
      "node_modules/@bufbuild/protobuf",
      "node_modules/investor-records-client",
    ]);
    writeFileSync(join(alone, "user.cjs"), user);

    cpSync(alone, beside, { recursive: true });
    const tools = ["@arethetypeswrong/cli@0.18", "esbuild@0.28", "jest@30", "publint@0.3"];
    await install(beside, "@grpc/grpc-js@1", ...connectPackages, "typescript@5.9", ...tools);
    for (const name of ["caller.mts", "caller.cts", "caller.ts"]) write(name, caller);
    write("client.mts", recipe.replace('"localhost:8080"', 'process.argv[2] ?? ""'));
    const project = (name: string, options: object, files: string[]) => {
      const strict = { strict: true, exactOptionalPropertyTypes: true };
      const compilerOptions = { target: "es2022", types: ["node"], ...strict, ...options };
      write(name, JSON.stringify({ compilerOptions, files }));
    };
    project("modules.json", { module: "nodenext" }, ["caller.mts", "caller.cts", "client.mts"]);
    const bundler = { module: "esnext", moduleResolution: "bundler", noEmit: true };
    project("bundler.json", bundler, ["caller.ts"]);
    project("node10.json", { module: "commonjs", moduleResolution: "node10" }, ["caller.ts"]);
    const [today, former] = [join(root, "node_modules/.bin/tsc"), bin("tsc")];
    const compile = async (name: string, ...compilers: string[]) => {
      for (const tsc of compilers) {
        const compiling = execute(tsc, ["-p", name], inPlace);
        expect((await compiling.catch((error) => error)).stdout, `${tsc} ${name}`).toBe("");
      }
    };
    await compile("modules.json", today, former);
    await compile("bundler.json", today, former);
    // TypeScript 7 no longer has it.
    await compile("node10.json", former);

    // As a later version may have it.
    const built = "node_modules/investor-records-client/dist/*/gen/**/investor_pb.d.ts";
    const types = globSync(built, { cwd: beside });
    expect(types).toHaveLength(2);
    for (const name of types) {
      const text = readFileSync(join(beside, name), "utf8");
      write(name, text.replaceAll("  requestId: string;", "  note: string;\n  requestId: string;"));
      expect(readFileSync(join(beside, name), "utf8")).not.toBe(text);
    }
    await compile("modules.json", today);
  });

  it("is as the tools for packages want it", async () => {
    const file = join(alone, packed);
    // The contract is no module.
    await execute(bin("attw"), [file, "--exclude-entrypoints", "investor.proto"], inPlace);
    const { stdout } = await execute(bin("publint"), [file, "--strict"], inPlace);
    expect(stdout).toContain("All good!");
  });

  for (const [name, node, options] of nodes) {
    it(
      `calls the service on ${name}, as an ES module, by require, bundled and in Jest`,
      options,
      async () => {
        const run = async (cwd: string, ...args: string[]) => {
          const { stdout, stderr } = await execute(node, args, { cwd });
          expect(stderr).toBe("");
          return stdout;
        };
        expect(await run(alone, "user.cjs")).toBe(
          `{"id":"1"}\ntrue\n2\n1\nfunction\nCannot find module '@grpc/grpc-js'\n`,
        );
        write("same.mjs", same);
        expect(await run(beside, "same.mjs")).toBe(`${"true 0\n".repeat(4)}true\n`);

        const { port } = await startService();
        const address = `localhost:${port}`;
        const bundle = ["caller.ts", "--bundle", "--platform=node"];
        const asScript = [...bundle, "--format=cjs", "--outfile=bundle.cjs"];
        await execute(bin("esbuild"), asScript, inPlace);
        // What grpc-js requires of Node.js is not there in a module.
        const banner = `--banner:js=${modules.replace("\n", "")}`;
        const asModule = [...bundle, "--format=esm", "--outfile=bundle.mjs", banner];
        await execute(bin("esbuild"), asModule, inPlace);
        // By node10, too.
        for (const file of ["caller.mjs", "caller.cjs", "caller.js", "bundle.cjs", "bundle.mjs"]) {
          expect(await run(beside, file, address), file).toBe(
            "investor.v1.InvestorService google.rpc.ErrorInfo Example Capital true " +
              "true INVALID_FIELDS [ 'id' ]\n",
          );
        }
        expect(await run(beside, "client.mjs", address)).toContain("lastName: 'Example Capital'");
        write("calls.test.js", jestTest);
        const addresses = { GRPC_ADDRESS: address, HTTP_ADDRESS: `http://localhost:${port}` };
        const jest = ["node_modules/jest/bin/jest.js", "--rootDir", beside];
        await execute(node, jest, { cwd: beside, env: { ...env, ...addresses } });

        write("fetch.mjs", fetchCaller);
        const location = `http://localhost:${port}`;
        const redirect = createServer((_, res) => void res.writeHead(301, { location }).end());
        const urls = ["ftp://localhost", `http://localhost:${await listen(redirect)}`];
        const said = (await run(beside, "fetch.mjs", ...urls)).trim().split("\n");
        expect(said).toEqual(urls.map(() => expect.stringMatching(/^FAILED_PRECONDITION: [^(]*$/)));
      },
    );
  }

  it("works in a browser, from a page of another origin", needs("Chromium"), async () => {
    let script = "";
    const server = createServer(({ url }, res) => {
      res.setHeader("content-type", url === "/" ? "text/html" : "text/javascript");
      res.end(url === "/" ? `<script type="module" src="/page.js"></script>` : script);
    });
    const origin = `http://localhost:${await listen(server)}`;
    const { port } = await startService({ CORS_ORIGIN: origin });
    const text = pageScript
      .replace("BASE", `http://localhost:${port}`)
      .replace("CONTENT", JSON.stringify(aNew()));
    write("page.js", text);
    const bundle = await rolldown({ cwd: beside, input: "page.js", platform: "browser" });
    script = (await bundle.generate()).output[0].code;

    const browser = await chromium.launch(chromiumOptions());
    onTestFinished(() => browser.close());
    const page = await browser.newPage();
    await page.goto(origin);
    await expect
      .poll(() => page.title())
      .toMatch(/^Lovelace,1,INVALID_ARGUMENT \(INVALID_FIELDS\): id is required$/);
  });
});
