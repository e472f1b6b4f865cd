import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { describe, expect, inject, it } from "vitest";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import {
  anyPort,
  ask,
  hasEnded,
  preload,
  run,
  runGroup,
  startService,
  storeWrong,
  untilWritten,
  waitFor,
} from "./support/service.ts";
import { listen } from "./support/tcp.ts";

const { engines } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/** Runs it where it has to end with status 2, and returns the one line that it writes. */
async function refusalOf(args: string[], env: NodeJS.ProcessEnv): Promise<string> {
  const { exited, output } = run(args, env, temporaryFolder());
  expect(await exited).toBe(2);
  expect(output()).toMatch(/^[^\n]+\n$/);
  return output();
}

describe("the command line", () => {
  it.each([
    [[], { PORT: "1\n2" }, /'1 2' from env 'PORT' .* must be a port/],
    [[], { npm_config_log_calls: "true" }, /npm took --log-calls: write it after "--"/],
    [[], { GRPC_PORT: "50051" }, /GRPC_PORT no longer exists: "--port" \(PORT\) serves/],
    [["serv"], {}, /unknown command "serv"; the commands are serve, copy, remove and help/],
    [["serve", "now"], {}, /too many arguments/],
    [["serve", "mongodb://u:s3cret@h/db"], {}, /too many arguments.* mongodb:\/\/h\/db/],
    [["mongodb://u:s3cret@h/db"], {}, /unknown command "mongodb:\/\/h\/db/],
    [["--database-ur=mongodb://u:s3cret"], {}, /unknown option '--database-ur=mongodb:\/\/…/],
    [["--database-ur=MONGODB://u:s3cret@h/db"], {}, /unknown option '--database-ur=mongodb:\/\/…/],
    [["--database-ur=mongodb://u:a s3cret@h/db"], {}, /unknown option '--database-ur=mongodb:/],
    [["postgres://u:s3cret@h/db"], {}, /unknown command "mongodb:\/\/…"/],
    [["--auth-tokens-file", "gone"], {}, /--auth-tokens-file gone cannot be read \(ENOENT\)/],
    [["--database-url", "mongodb://h/?no=1"], {}, /--database-url is not a MongoDB connection/],
  ] as const)("refuses %j %j with one line of the log and status 2", async (args, env, named) => {
    const line = await refusalOf([...args], env);
    expect(JSON.parse(line)).toMatchObject({ level: 60, msg: expect.stringMatching(named) });
    expect(line).not.toContain("s3cret");
  });

  it("is built as a program that can be run", () => {
    const { stdout } = spawnSync(inject("bin"), ["--version"], { encoding: "utf8" });
    expect(stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });

  it.each(["18.20.8", "24.9.0"])("ends with status 2 and one line on Node.js %s", async (node) => {
    const versions = `{ value: { ...process.versions, node: "${node}" } }`;
    const pretend = preload(`Object.defineProperty(process, "versions", ${versions})`);
    expect(await refusalOf([], { NODE_OPTIONS: pretend })).toContain(
      `error: investor-records needs Node.js ${engines.node.slice(2)} or newer, not ${node}: https://nodejs.org`,
    );
  });

  it("ends with its status where it may start no program", async () => {
    await refusalOf(["serv"], { NODE_OPTIONS: "--permission --allow-fs-read=*" });
  });

  it("ends soon after its last line, since a signal could meanwhile change its status", async () => {
    const ends: number[] = [];
    const starts: number[] = [];
    for (let i = 0; i < 4; i += 1) {
      const refused = run(["serv"], {}, temporaryFolder());
      await untilWritten(refused, "\n");
      const written = performance.now();
      await refused.exited;
      const ended = performance.now();
      spawnSync(process.execPath, ["-e", "0"]);
      ends.push(ended - written);
      starts.push(performance.now() - ended);
    }
    // Much sooner than another Node.js would.
    expect(Math.min(...ends)).toBeLessThan(Math.min(...starts) / 2);
  });

  it.each<[what: string, settings: (taken: number) => NodeJS.ProcessEnv, fault: string]>([
    ["a file of another kind", () => ({ DATABASE_URL: "sqlite:broken.db" }), "SQLite 26"],
    ["a port that is taken", (taken) => ({ PORT: `0,${taken}` }), "address already in use"],
  ])("ends with status 1 and one line by %s", async (_, settings, fault) => {
    const folder = temporaryFolder();
    writeFileSync(join(folder, "broken.db"), "x".repeat(10_000));
    const { exited, output } = run([], settings(await listen(createServer())), folder);
    expect(await exited).toBe(1);
    expect(output()).toMatch(/^[^\n]+\n$/);
    expect(JSON.parse(output()).msg).toContain(fault);
    // Before it has touched the database.
    expect(existsSync(join(folder, "data"))).toBe(false);
  });

  it.each([
    [{ LOG_LEVEL: "debug", MAX_INFLIGHT: "1" }, "<6>30 <4>40 <3>50 <7>20"],
    [{ PORT: "x" }, "<2>60"],
    [{ DATABASE_URL: "sqlite:/dev/null/a.db" }, "<2>60"],
  ])("gives journald priorities with %j", async (env, expected) => {
    // As systemd names what journald reads.
    const script = 'JOURNAL_STREAM=$(stat -L -c %d:%i /dev/fd/2) exec "$0" "$@"';
    const args = ["-c", script, process.execPath, inject("bin")];
    const folder = temporaryFolder();
    const all = { PATH: process.env.PATH, ...anyPort, ...env };
    const service = runGroup("sh", args, { cwd: folder, env: all });
    await untilWritten(service, '"msg":"serving');
    if (!hasEnded(service.child)) {
      const [, port] = /http:\/\/[^ "]*:(\d+)/.exec(service.output()) ?? [];
      const get = (id: string) => ask({ port: Number(port) }, `/v1/investors/${id}`);
      await get("none");
      await get(storeWrong({ folder }));
      await untilWritten(service, '"level":20');
      await untilWritten(service, '"level":50');
    }
    const lines = service.output().trim().split("\n");
    const found = lines.map((line) => line.replace(/^(<\d>)\{"level":(\d+).*\}$/, "$1$2"));
    expect(new Set(found)).toEqual(new Set(expected.split(" ")));
  });

  it("warns of each variable that is a setting but for one letter or underscore", async () => {
    const misspelled = { DATABASE_UR: "mongodb://u:s3cret@h", MAX_INFLIGHT: "1" };
    const others = { MAXINFLIGHT: "1", POST: "1", HOSTS: "1", drain_dela: "1s", CORS_ORIGIN: "" };
    const service = await startService({ ...misspelled, ...others, TSL_CERT: "a.crt" });
    const { output } = service;
    const warned = output().matchAll(/"level":40,.*"the variable (\w+) is .* to be (\w+)\?"/g);
    expect(Array.from(warned, ([, name, meant]) => [name, meant])).toEqual([
      ["DATABASE_UR", "DATABASE_URL"],
      ["MAX_INFLIGHT", "MAX_IN_FLIGHT"],
    ]);
    expect(output()).not.toContain("s3cret");
  });

  it("logs to standard error, and writes nothing to standard output", async () => {
    const { child, exited, written } = run([], { LOG_LEVEL: "trace" }, temporaryFolder());
    await waitFor(async () => written.stderr.includes("serving"));
    // By which Node.js itself would open a debugger.
    child.kill("SIGUSR1");
    child.kill("SIGHUP");
    await waitFor(async () => written.stderr.includes("nothing to reload"));
    child.kill("SIGTERM");
    expect(await exited).toBe(0);
    expect(written.stdout).toBe("");
    const logged = written.stderr.trim().split("\n");
    expect(logged.map((line) => JSON.parse(line).msg)).toContain("stopped");
  });
});
