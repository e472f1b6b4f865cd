import { execFile, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { expect, it, onTestFinished } from "vitest";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";
import { copyClone, root, toolPath } from "./clone.ts";

const execute = promisify(execFile);
const readme = readFileSync(join(root, "examples/README.md"), "utf8");

/** The commands that README.md prints under a heading. */
function stepsOf(language: string): string {
  const [, section = ""] = readme.split(`\n## ${language}\n`);
  const [, steps] = /```sh\n([\s\S]*?)```/.exec(section) ?? [];
  if (steps === undefined) throw new Error(`README.md has no steps for ${language}`);
  return steps;
}

/** A port that takes connections and says nothing. */
async function silentPort(): Promise<number> {
  const server = createServer((socket) => socket.on("error", () => {}));
  onTestFinished(() => {
    server.close();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const address = server.address();
  if (typeof address !== "object" || address === null) throw new Error("no port");
  return address.port;
}

/** Whether Maven can fetch what it needs; Java is tried only where it can. */
function hasMaven(): boolean {
  const options = ["-q", "-B", "dependency:get", "-Dtransitive=false"];
  const artifact = "-Dartifact=io.grpc:grpc-bom:1.83.1:pom";
  if (spawnSync("mvn", [...options, artifact], { stdio: "ignore" }).status === 0) return true;
  console.warn("SKIPPED: the example in Java, without Maven or its repository");
  return false;
}

const languages: [string, () => boolean][] = [
  ["TypeScript with grpc-js", () => true],
  ["TypeScript with Connect", () => true],
  ["Python", () => hasTool("python3", ["--version"])],
  ["Go", () => hasTool("go", ["version"])],
  ["Java", hasMaven],
];

it.for(languages)(
  "%s: the example runs as printed, and ends at its deadline",
  // Longest where nothing has been downloaded or compiled before.
  { timeout: 300_000 },
  async ([language, isThere], { skip }) => {
    skip(!isThere());
    const service = await startService();
    const client = grpcClient(service);
    await Promise.all(Array.from({ length: 150 }, () => client.createInvestor(aCreate())));
    const silent = await silentPort();

    const steps = stepsOf(language)
      .replaceAll("localhost:50051", `localhost:${service.grpcPort}`)
      .replaceAll("localhost:8080", `localhost:${service.httpPort}`);
    const late = (steps.trimEnd().split("\n").at(-1) ?? "").replace(
      /localhost:\d+/,
      `127.0.0.1:${silent}`,
    );
    const script = `set -euo pipefail\n${steps}echo THEN\nif ${late} 2>&1; then echo IN TIME; fi`;
    const { stdout } = await execute("bash", ["-c", script], {
      cwd: copyClone(),
      env: { ...process.env, PATH: toolPath, NO_COLOR: "1" },
      maxBuffer: 16 * 1024 * 1024,
    });

    const [printed = "", afterwards = ""] = stripVTControlCharacters(stdout).split("THEN\n");
    const [created, ...lines] = printed.slice(printed.indexOf("created ")).trim().split("\n");
    expect(created).toMatch(/^created [0-9a-f-]{36}$/);
    expect(lines.map((line) => line.trim())).toEqual([
      created?.replace("created", "replayed"),
      "refused INVALID_FIELDS",
      "country must be two or three letters a-z",
      "listed 151",
    ]);
    expect(afterwards).toMatch(/deadline.?exceeded/i);
    expect(afterwards).not.toContain("IN TIME");
  },
);
