/** Processes that are told to end while something never replies to them. */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, describe, expect, inject, it } from "vitest";
import { prepareDisks } from "./gate/faults/failing-disk.ts";
import { makeSqlite } from "./support/copying.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { aCreate } from "./support/records.ts";
import {
  anyPort,
  end,
  grpcClient,
  hurry,
  type Run,
  run,
  runGroup,
  startService,
  untilWritten,
} from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** The last line that a service has logged. */
const lastMessage = ({ output }: Run) => JSON.parse(output().trim().split("\n").at(-1) ?? "").msg;

describe("a name server that does not reply", needs("cc"), () => {
  const folder = sharedFolder();
  const library = join(folder, "dns.so");
  const env = { LD_PRELOAD: library, DATABASE_URL: "mongodb://db.example/" };
  const hangs = "getaddrinfo hangs";

  beforeAll(() => {
    const input = `
      #include <stdio.h>
      #include <unistd.h>
      int getaddrinfo(void) { for (dprintf(2, "${hangs}\\n");; pause()); }`;
    execFileSync("cc", ["-shared", "-fPIC", "-x", "c", "-o", library, "-"], { input });
  });

  it.each([
    ["the service", [], 0],
    ["copy", ["copy", "env:DATABASE_URL", "out.ndjson"], 143],
    ["remove", ["remove", "env:DATABASE_URL", "01980f3c-5a00-780d-b45f-8ecdc28f57c1"], "SIGTERM"],
  ] as const)("does not hold up the end of %s", async (_, args, status) => {
    const running = run([...args], { ...env, NODE_OPTIONS: hurry(5) }, temporaryFolder());
    await untilWritten(running, args.length > 0 ? hangs : "serving");
    expect(running.output()).toContain(hangs);
    expect(await end(running)).toBe(status);
    if (status === 0) expect(lastMessage(running)).toBe("stopped");
  });
});

it("a reader of standard output that stays away does not hold up the end of a copy", async () => {
  const folder = temporaryFolder();
  await makeSqlite(folder, "a.db", 10_000);
  const copying = run(["copy", "sqlite:a.db", "-"], { NODE_OPTIONS: hurry(5) }, folder);
  copying.child.stdout?.pause();
  await untilWritten(copying, "0 records");
  copying.child.kill("SIGTERM");
  await untilWritten(copying, "stopped by SIGTERM, without waiting for pending work");
  copying.child.stdout?.resume();
  expect(await copying.exited).toBe(143);
});

describe("a disk that hangs", needs("cc"), () => {
  const createDisk = prepareDisks();

  it("does not hold up the end beyond the drain timeout", async () => {
    const disk = createDisk();
    const env = { ...disk.env, DRAIN_TIMEOUT: "100ms", NODE_OPTIONS: hurry(5) };
    const service = await startService(env, disk.folder);
    disk.setRules("sync -wal 1 hang");
    const creating = grpcClient(service).createInvestor(aCreate());
    await Promise.race([creating, untilWritten(service, "hang")]);
    expect(await end(service)).toBe(1);
    expect(lastMessage(service)).toBe(
      "stopped, and cut calls in flight, and could not close the database in time",
    );
    await expect(creating).rejects.toThrow();
  });
});

describe("process 1 of a container", needs("mount"), () => {
  it.each([
    ["with status 0 at one signal", "0s", [], 0, "stopped"],
    [
      "at once at a second one, as SIGKILL ends others",
      "10h",
      ["SIGINT"],
      137,
      "by a second signal",
    ],
  ] as const)("ends %s", async (_, DRAIN_DELAY, more, status, told) => {
    const args = ["--pid", "--fork", "--kill-child", process.execPath, inject("bin")];
    const env = { PATH: process.env.PATH, ...anyPort, DRAIN_DELAY };
    const service = runGroup("unshare", args, { cwd: temporaryFolder(), env });
    await untilWritten(service, "serving");
    const children = `/proc/${service.child.pid}/task/${service.child.pid}/children`;
    const pid = Number(readFileSync(children, "utf8"));
    process.kill(pid, "SIGTERM");
    for (const signal of more) {
      await untilWritten(service, "shutting down");
      process.kill(pid, signal);
    }
    expect(await service.exited).toBe(status);
    expect(lastMessage(service)).toContain(told);
  });
});
