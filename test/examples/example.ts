import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { promisify, stripVTControlCharacters } from "node:util";
import { expect, onTestFinished } from "vitest";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";
import { copyClone, root, toolPath } from "./clone.ts";

const execute = promisify(execFile);
const readme = readFileSync(join(root, "examples/README.md"), "utf8");

/** How long an example may take in ms; longest where nothing is downloaded or compiled yet. */
export const exampleTimeoutMs = 300_000;

/**
 * Runs an example as README.md prints it, against a service that has 150 records, and once
 * more against one that never replies.
 *
 * @param language the heading of its steps
 */
export async function tryExample(language: string): Promise<void> {
  const service = await startService();
  const client = grpcClient(service);
  await Promise.all(Array.from({ length: 150 }, () => client.createInvestor(aCreate())));

  const steps = stepsOf(language)
    .replaceAll("localhost:50051", `localhost:${service.grpcPort}`)
    .replaceAll("localhost:8080", `localhost:${service.httpPort}`);
  const [last = ""] = steps.split("\n").slice(-1);
  const late = last.replace(/localhost:\d+/, `127.0.0.1:${await silentPort()}`);
  const script = `${steps}\necho THEN\nif ${late} 2>&1; then echo IN TIME; fi`;
  const { stdout } = await execute("bash", ["-euo", "pipefail", "-c", script], {
    cwd: copyClone(),
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
}

/** The commands under a heading of README.md. */
function stepsOf(language: string): string {
  const [, section = ""] = readme.split(`\n### ${language}\n`);
  const [, steps] = /```sh.*\n([\s\S]*?)\n```/.exec(section) ?? [];
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
  if (typeof address !== "object" || address === null) throw new Error("it has no port");
  return address.port;
}
