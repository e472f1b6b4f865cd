/** Lines that can be repeated without end, and standard error that takes nothing, for which nothing waits. */
import { join } from "node:path";
import { pino } from "pino";
import { describe, expect, inject, it, onTestFinished, vi } from "vitest";
import { createBoundedLines } from "../src/log.ts";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { aCreate } from "./support/records.ts";
import {
  end,
  grpcClient,
  metric,
  preload,
  runGroup,
  startService,
  waitFor,
} from "./support/service.ts";
import { freePort } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

it("names ten lines of a kind a second, counts the others when it is over, and none below its level", () => {
  vi.useFakeTimers();
  onTestFinished(() => void vi.useRealTimers());
  const told: string[] = [];
  const log = pino({ base: null, timestamp: false }, { write: (line) => void told.push(line) });
  const logLine = createBoundedLines(log, "were refused");
  const logTimes = (times: number, level: "debug" | "warn") =>
    Array.from({ length: times }, () => logLine(level, {}, "refused"));
  expect(logTimes(13, "debug")).not.toContain(true);
  logTimes(13, "warn");
  vi.advanceTimersByTime(999);
  expect(told).toHaveLength(10);
  vi.advanceTimersByTime(1);
  const rest = { count: 3, msg: "more were refused in the same second" };
  expect(JSON.parse(told[10] ?? "")).toMatchObject(rest);
  logTimes(10, "warn");
  vi.advanceTimersByTime(1_000);
  expect(told).toHaveLength(11 + 10);
});

/** Runs a program on a terminal of its own, which is stopped as by Ctrl-S. */
const onStoppedTerminal = `
import os, pty, sys, termios
master, slave = pty.openpty()
os.set_inheritable(master, True)
os.dup2(slave, 2)
termios.tcflow(slave, termios.TCOOFF)
os.execv(sys.argv[1], sys.argv[1:])`;

const redirected = (to: string) => ["sh", "-c", `mkfifo log; exec 3<>log "$0" "$@" 2>${to}`];

/** What has a program write to standard error that nobody reads, or that is full. */
const launchers: [string, string[], ...Parameters<typeof needs>][] = [
  ["a pipe", redirected("log")],
  ["a socket", ["env"]],
  ["a terminal that is stopped", ["python3", "-c", onStoppedTerminal], "Python"],
  ["a full disk", redirected("/dev/full")],
];

/** Runs the command line, none of whose standard error is read, in a folder of its own. */
function runUnread([program = "", ...args]: string[], own: string[], env = {}) {
  const all = [...args, process.execPath, inject("bin"), ...own];
  const options = { cwd: temporaryFolder(), env: { PATH: process.env.PATH, ...env } };
  const running = runGroup(program, all, options);
  running.child.stderr?.pause();
  return running;
}

it("is tried again ever more rarely, up to once a second, while nobody reads it", async () => {
  const script = `
    import fs from "node:fs";
    import { syncBuiltinESMExports } from "node:module";
    const { writeSync } = fs;
    fs.writeSync = (...args) => {
      try {
        return writeSync(...args);
      } catch ({ code }) {
        console.log(code);
        throw code;
      }
    };
    syncBuiltinESMExports();`;
  const service = await startService({ NODE_OPTIONS: preload(script) });
  service.child.stderr?.destroy();
  service.child.kill("SIGHUP");
  const failures = () => service.written.stdout.match(/EPIPE/g)?.length ?? 0;
  await waitFor(() => failures() >= 1);
  const start = performance.now();
  await waitFor(() => failures() >= 10);
  expect(performance.now() - start).toBeGreaterThan(2_000);
});

describe.each(launchers)("%s that takes nothing", (kind, launcher, ...tools) => {
  it(
    "holds up neither a copy nor the service, which counts and says what is lost",
    needs(...tools),
    async () => {
      const from = join(root, "examples/investors.ndjson");
      expect(await runUnread(launcher, ["copy", from, "sqlite:copy.db"]).exited).toBe(0);
      // Nothing says which port the service would choose.
      const port = await freePort();
      const service = runUnread(launcher, [], { PORT: String(port), LOG_LEVEL: "debug" });
      const client = grpcClient({ port });
      const lost = () => metric({ port }, "investor_records_log_lines_dropped_total");
      await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
      await waitFor(async () => {
        await Promise.all(Array.from({ length: 100 }, () => client.createInvestor(aCreate())));
        return (await lost()) > 0;
      });
      if (kind === "a socket") {
        service.child.stderr?.resume();
        await expect.poll(service.output).toMatch(/"dropped":\d+,"msg":"log lines were/);
      }
      expect(await end(service)).toBe(0);
    },
  );
});
