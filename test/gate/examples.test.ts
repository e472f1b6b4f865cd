// Each example downloads and compiles what it needs, which takes minutes the first time.
import { execFile } from "node:child_process";
import { once } from "node:events";
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { version } from "uuid";
import { expect, it, type TestOptions } from "vitest";
import { copyClone, foreignPath, root } from "../support/clone.ts";
import { copy } from "../support/copying.ts";
import { sharedFolder, temporaryFolder } from "../support/folder.ts";
import { readBlocks, readPage } from "../support/markdown.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const execute = promisify(execFile);

const languages: [language: string, options: TestOptions][] = [
  ["TypeScript with grpc-js", {}],
  ["TypeScript with Connect", {}],
  ["Python", needs("Python")],
  ["Go", needs("Go")],
  ["Java", needs("Maven")],
];

/** The commands under a heading of examples/README.md. */
function stepsOf(language: string): string {
  const [, section = ""] = readPage("examples/README.md").split(`\n### ${language}\n`);
  const [, steps] = /```sh.*\n([\s\S]*?)\n```/.exec(section) ?? [];
  if (steps === undefined) throw new Error(`examples/README.md has no steps for ${language}`);
  return steps;
}

/** How the last command of an example ended. */
type Ended = Promise<{ stdout: string; code: number }>;

/** Examples that nobody replies to, beside the tests that follow. */
const unanswered: Ended[] = [];

/** Does the steps of an example in a clone, where they would change nothing of the tools that npm uses. */
async function doSteps(language: string, { port }: Service) {
  const clone = mkdtempSync(join(clones, "clone-"));
  copyClone(clone);
  const toScript = (steps: string) => steps.replaceAll("localhost:8080", `localhost:${port}`);
  const bash = (script: string) =>
    execute("bash", ["-euo", "pipefail", "-c", script], {
      cwd: clone,
      env: { ...process.env, PATH: foreignPath },
      maxBuffer: 16 * 1024 * 1024,
    });
  const steps = stepsOf(language).split("\n");
  const last = steps.pop() ?? "";
  const { stdout: first } = await bash(toScript(stepsOf(language)));
  // Again, with what the first time left behind.
  const { stdout: second } = await bash(toScript(stepsOf(language)));
  const prepared = steps.filter((step) => /^(cd|\.) /.test(step)).join("\n");
  const runThere = (script: string) => bash(toScript(`${prepared}\n${script}`));
  // It takes connections and says nothing.
  const silent = createServer((socket) => socket.on("error", () => {})).unref();
  await once(silent.listen(0, "127.0.0.1"), "listening");
  const address = `127.0.0.1:${(silent.address() as AddressInfo).port}`;
  unanswered.push(
    runThere(`${last.replace(/localhost:\d+/, address)} 2>&1`).then(
      ({ stdout }) => ({ stdout, code: 0 }),
      ({ stdout, code }) => ({ stdout, code }),
    ),
  );
  return { first, second, runThere };
}

/** Where they are, until the last test has looked at those that nobody answers. */
const clones = sharedFolder();

for (const [language, options] of languages) {
  it(`the example in ${language} runs as printed on 150 records`, options, async () => {
    const service = await startService();
    const client = grpcClient(service);
    await Promise.all(Array.from({ length: 149 }, () => client.createInvestor(aCreate())));
    await client.createInvestor(aCreate({ requestId: "01980f3c-5a00-7c3e-9b1f-6f1d2a4b8c0d" }));
    const { first, second, runThere } = await doSteps(language, service);
    expectPrinted(first, 151);
    expectPrinted(second, 152);
    if (language === "TypeScript with grpc-js") {
      const { text } = readBlocks("README.md").find((block) => block.language === "ts") ?? {};
      const node = "../../node_modules/.bin/node";
      const printed = await runThere(`cat > readme.ts <<'END'\n${text}\nEND\n${node} readme.ts`);
      expect(printed.stdout).toContain(`lastName: '${aCreate().lastName}'`);
    }
  });
}

it("the examples end at their deadlines where nobody replies", async () => {
  expect(unanswered).toHaveLength(languages.filter(([, { skip }]) => !skip).length);
  for (const { stdout, code } of await Promise.all(unanswered)) {
    expect(stdout).toMatch(/deadline.?exceeded/i);
    expect(code).not.toBe(0);
  }
});

/** Expects what examples/README.md shows. */
function expectPrinted(stdout: string, count: number): void {
  const printed = stripVTControlCharacters(stdout);
  const [created, ...lines] = printed.slice(printed.indexOf("created ")).trim().split("\n");
  expect(created, printed).toMatch(/^created [0-9a-f-]{36}$/);
  expect(lines).toEqual([
    created?.replace("created", "replayed"),
    "refused: INVALID_FIELDS",
    "country: must be two or three lower-case letters (a-z)",
    `listed ${count}`,
  ]);
}

it.each([
  ["buf", "mkdir -p proto"],
  ["protoc", "protoc -I"],
])(
  "code for Go is generated by the steps of examples/README.md with %s in a module of one's own",
  {
    ...needs("Go", "Python"),
  },
  async (tool, first) => {
    const folder = temporaryFolder();
    symlinkSync(root, join(folder, "investor-records"));
    const own = join(folder, "own");
    const bin = join(folder, "bin");
    mkdirSync(own);
    mkdirSync(bin);
    for (const name of ["buf.gen.yaml", "go.mod", "go.sum"]) {
      copyFileSync(join(root, "examples/go", name), join(own, name));
    }
    if (tool === "protoc") {
      // That of Python's package, which has no command of this name.
      const install = `python3 -m venv .venv && .venv/bin/pip install -q grpcio-tools~=1.85
      go -C own build -o ${bin} google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc`;
      await execute("bash", ["-euc", install], { cwd: folder });
      const protoc = `#!/bin/sh\nexec ${folder}/.venv/bin/python -m grpc_tools.protoc "$@"\n`;
      writeFileSync(join(bin, "protoc"), protoc, { mode: 0o755 });
    }
    const steps = readBlocks("examples/README.md").find(({ text }) => text.startsWith(first))?.text;
    const env = { ...process.env, PATH: `${bin}:${process.env.PATH}` };
    // The second time with what the first left behind.
    for (let run = 0; run < 2; run++) {
      await execute("bash", ["-euc", steps ?? "false"], { cwd: own, env });
    }
    const generated = readFileSync(join(own, "gen/investor/v1/investor_grpc.pb.go"), "utf8");
    expect(generated).toContain("type InvestorServiceClient interface");
    const main = `package main
    import investorv1 "example/gen/investor/v1"
    func main() { println(investorv1.InvestorService_ServiceDesc.ServiceName) }`;
    writeFileSync(join(own, "main.go"), main);
    await execute("go", ["vet", "."], { cwd: own });
  },
);

it("examples/investors.ndjson is imported and served as it is", async () => {
  const folder = temporaryFolder();
  const file = join(root, "examples/investors.ndjson");
  const copied = await copy([file, "sqlite:investors.db"], { folder });
  expect(copied, copied.told).toMatchObject({ code: 0 });
  const { port } = await startService({ DATABASE_URL: "sqlite:investors.db" }, folder);
  const response = await fetch(`http://localhost:${port}/v1/investors`);
  const records = readFileSync(file, "utf8").trim().split("\n");
  expect(await response.json()).toEqual(records.map((line) => JSON.parse(line)));
  expect(records).toHaveLength(20);
  for (const line of records) expect(version(JSON.parse(line).id), line).toBe(7);
});
