import { type ChildProcess, execFile, execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";

/** A server that is measured, as a process of its own. */
export interface Server {
  readonly name: string;
  readonly port: number;
  /** From its start until it was ready, in milliseconds. */
  readonly startMs: number;
  /** The CPU time of all its threads so far, in microseconds; NaN except on Linux. */
  cpuTime(): number;
  /** Resident memory in MiB, now and at its peak; NaN except on Linux. */
  memory(): { now: number; peak: number };
  signal(name: NodeJS.Signals): void;
  /** Ends it, by SIGTERM unless told otherwise. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/** How long a server may take to start, in milliseconds. */
const patienceMs = 60_000;
const microsecondsPerTick = 10_000;
const root = join(import.meta.dirname, "..");
const bin = join(root, "dist/bin.js");

/** Runs another command of the service to its end, which has to be a success. */
export function runService(...args: string[]): Promise<unknown> {
  return promisify(execFile)(bin, args);
}

/** Starts the service on a database, with more settings if there are any. */
export function startService(databaseUrl: string, ...more: string[]): Promise<Server> {
  const options = ["--database-url", databaseUrl, "--port", "0", ...more];
  return start("Investor Records", bin, ["serve", ...options], /http:\/\/[\d.]+:(\d+)/);
}

/** Starts a file of this folder, which prints the port that it serves on. */
export function startPeer(name: string, file: string, ...args: string[]): Promise<Server> {
  return startProgram(name, process.execPath, join(import.meta.dirname, file), ...args);
}

/** Starts a program that prints the port that it serves on. */
export function startProgram(name: string, program: string, ...args: string[]): Promise<Server> {
  return start(name, program, args, /^(\d+)$/m);
}

/**
 * Builds the peer in Go.
 *
 * @returns the path of its program, which takes the URL of a database
 */
export function buildGoPeer(): string {
  const cwd = join(import.meta.dirname, "peers/go");
  const run = (program: string, ...args: string[]) =>
    execFileSync(program, args, { cwd, stdio: ["ignore", "ignore", "inherit"] });
  run(join(root, "node_modules/.bin/buf"), "generate");
  run("go", "build", "-buildvcs=false", "-o", "bin/", "./grpc");
  return join(cwd, "bin/grpc");
}

async function start(
  name: string,
  program: string,
  args: string[],
  ports: RegExp,
): Promise<Server> {
  const begun = performance.now();
  const child = spawn(program, args, { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const [, port] = await waitForOutput(name, child, ports);
  const proc = (file: string) =>
    process.platform === "linux" ? readFileSync(`/proc/${child.pid}/${file}`, "utf8") : "";
  return {
    name,
    port: Number(port),
    startMs: performance.now() - begun,
    cpuTime() {
      const stat = proc("stat");
      // The name of the program comes before, in parentheses, and may hold anything.
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      return (Number(fields[11]) + Number(fields[12])) * microsecondsPerTick;
    },
    memory() {
      const status = proc("status");
      const mib = (key: string) => Number(new RegExp(`${key}:\\s*(\\d+)`).exec(status)?.[1]) / 1024;
      return { now: mib("VmRSS"), peak: mib("VmHWM") };
    },
    signal: (name) => void child.kill(name),
    async stop(signal) {
      const gone = new Promise((resolve) => child.once("exit", resolve));
      child.kill(signal);
      await gone;
      process.off("exit", kill);
    },
  };
}

function waitForOutput(name: string, child: ChildProcess, pattern: RegExp): Promise<string[]> {
  return new Promise((resolve, reject) => {
    let output = "";
    const timer = setTimeout(() => child.kill("SIGKILL"), patienceMs);
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on("data", (text) => {
        output += text;
        const match = pattern.exec(output);
        if (match === null) return;
        clearTimeout(timer);
        resolve(match);
      });
    }
    child.once("error", reject);
    child.once("exit", () =>
      reject(new Error(`${name} ended, or was not ready in time: ${output}`)),
    );
  });
}
