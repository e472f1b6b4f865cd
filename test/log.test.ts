/** Standard error that takes nothing, for which nothing waits. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { hasPython } from "./support/python.ts";
import { aCreate } from "./support/records.ts";
import { grpcClient, metric, runGroup, startService, waitFor } from "./support/service.ts";

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
const launchers: [string, string[], boolean][] = [
  ["a pipe", redirected("log"), true],
  ["a socket", ["env"], true],
  ["a terminal that is stopped", ["python3", "-c", onStoppedTerminal], hasPython],
  ["a full disk", redirected("/dev/full"), existsSync("/dev/full")],
];

/** Runs the command line, none of whose standard error is read. */
function runUnread([program = "", ...args]: string[], own: string[], options: object) {
  const all = [...args, process.execPath, join(root, "src/bin.ts"), ...own];
  const running = runGroup(program, all, { ...options });
  running.child.stderr?.pause();
  return running;
}

describe.each(launchers.filter(([, , isThere]) => isThere))("%s that takes nothing", (...of) => {
  const [kind, launcher] = of;

  it("does not hold up the service, which counts and says what is lost", async () => {
    // The ports are chosen as those of a service that is gone, since nothing says them.
    const { grpcPort, httpPort, child, exited } = await startService();
    child.kill("SIGTERM");
    await exited;
    const ports = { GRPC_PORT: String(grpcPort), HTTP_PORT: String(httpPort) };
    const env = { PATH: process.env.PATH, ...ports, LOG_LEVEL: "debug" };
    const service = runUnread(launcher, [], { cwd: temporaryFolder(), env });
    const client = grpcClient({ grpcPort });
    const lost = () => metric({ httpPort }, "investor_records_log_lines_dropped_total");
    await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
    await waitFor(async () => {
      await Promise.all(Array.from({ length: 100 }, () => client.createInvestor(aCreate())));
      return (await lost()) > 0;
    });
    if (kind === "a socket") {
      service.child.stderr?.resume();
      await expect.poll(service.output).toMatch(/"dropped":\d+,"msg":"lines of the log were/);
    }
    service.child.kill("SIGTERM");
    expect(await service.exited).toBe(0);
  });

  it("does not hold up a copy", async () => {
    const from = join(root, "examples/investors.ndjson");
    const args = ["copy", from, "sqlite:copy.db"];
    const { PATH } = process.env;
    const { exited } = runUnread(launcher, args, { cwd: temporaryFolder(), env: { PATH } });
    expect(await exited).toBe(0);
  });
});
