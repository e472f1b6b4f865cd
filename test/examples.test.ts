// Each example downloads and compiles what it needs, which takes minutes the first time.
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { version } from "uuid";
import { expect, it, type TestOptions } from "vitest";
import { copyClone, root, toolPath } from "./support/clone.ts";
import { copy } from "./support/copying.ts";
import { temporaryFolder } from "./support/folder.ts";
import { readPage } from "./support/markdown.ts";
import { aCreate } from "./support/records.ts";
import { grpcClient, startService } from "./support/service.ts";
import { listen } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

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

for (const [language, options] of languages) {
  it(
    `the example in ${language} runs as printed on 150 records, and ends at its deadline`,
    options,
    async () => {
      const service = await startService();
      const client = grpcClient(service);
      await Promise.all(Array.from({ length: 150 }, () => client.createInvestor(aCreate())));

      const steps = stepsOf(language)
        .replaceAll("localhost:50051", `localhost:${service.grpcPort}`)
        .replaceAll("localhost:8080", `localhost:${service.httpPort}`);
      const [last = ""] = steps.split("\n").slice(-1);
      // It takes connections and says nothing.
      const silent = await listen(createServer((socket) => socket.on("error", () => {})));
      const late = last.replace(/localhost:\d+/, `127.0.0.1:${silent}`);
      const script = `${steps}\necho THEN\nif ${late} 2>&1; then echo IN TIME; fi`;
      const clone = temporaryFolder();
      copyClone(clone, "client");
      const { stdout } = await execute("bash", ["-euo", "pipefail", "-c", script], {
        cwd: clone,
        env: { ...process.env, PATH: toolPath },
        maxBuffer: 16 * 1024 * 1024,
      });

      const [printed = "", afterwards = ""] = stripVTControlCharacters(stdout).split("THEN\n");
      const [created, ...lines] = printed.slice(printed.indexOf("created ")).trim().split("\n");
      expect(created).toMatch(/^created [0-9a-f-]{36}$/);
      expect(lines).toEqual([
        created?.replace("created", "replayed"),
        "refused: invalid: country",
        "reason: INVALID_FIELDS",
        "country: must be two or three lower-case letters (a-z)",
        "listed 151",
      ]);
      expect(afterwards).toMatch(/deadline.?exceeded/i);
      expect(afterwards).not.toContain("IN TIME");
    },
  );
}

it("examples/investors.ndjson is imported and served as it is", async () => {
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
