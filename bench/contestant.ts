import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A server that is measured, as a process of its own. */
export interface Contestant {
  readonly name: string;
  readonly pid: number;
  /** The port for gRPC, or the only one. */
  readonly port: number;
  /** The port for HTTP/1.1, where it is another. */
  readonly httpPort: number;
  /** From its start until it was ready, in milliseconds. */
  readonly startMs: number;
  /** Resident memory in MiB, now and the most ever; NaN where the system does not tell. */
  memoryMib(): { now: number; peak: number };
  stop(): Promise<void>;
}

/** How long a server may take to start, in milliseconds. */
const patienceMs = 60_000;
const root = join(import.meta.dirname, "..");
const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/** What `npm start` runs. */
export const npmStart: string[] = scripts.start.replace(" $NODE_ARGS", "").split(" ").slice(1);

/** Starts a file of this folder, which prints the port that it serves on. */
export function startPeer(name: string, file: string, ...args: string[]): Promise<Contestant> {
  return startProgram(name, process.execPath, join(import.meta.dirname, file), ...args);
}

/** Starts a program that prints the port that it serves on. */
export function startProgram(name: string, program: string, ...args: string[]) {
  return start(name, program, args, /^(\d+)$/m);
}

/** Starts the service on a database. */
export function startService(databaseUrl: string, [program = "", ...args] = npmStart) {
  return start(
    "Investor Records",
    program,
    [...args, "--database-url", databaseUrl, "--grpc-port", "0", "--http-port", "0"],
    /grpc:\/\/[\d.]+:(\d+) and http:\/\/[\d.]+:(\d+)/,
  );
}

async function start(
  name: string,
  program: string,
  args: string[],
  ports: RegExp,
): Promise<Contestant> {
  const begun = performance.now();
  const child = spawn(program, args, { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const [, port, httpPort = port] = await waitForOutput(name, child, ports);
  return {
    name,
    pid: child.pid ?? 0,
    port: Number(port),
    httpPort: Number(httpPort),
    startMs: performance.now() - begun,
    memoryMib() {
      if (process.platform !== "linux") return { now: Number.NaN, peak: Number.NaN };
      const status = readFileSync(`/proc/${child.pid}/status`, "utf8");
      const mib = (key: string) => Number(new RegExp(`${key}:\\s*(\\d+)`).exec(status)?.[1]) / 1024;
      return { now: mib("VmRSS"), peak: mib("VmHWM") };
    },
    async stop() {
      const gone = new Promise((resolve) => child.once("exit", resolve));
      child.kill();
      await gone;
      process.off("exit", kill);
    },
  };
}

function waitForOutput(name: string, child: ChildProcess, pattern: RegExp): Promise<string[]> {
  return new Promise((resolve, reject) => {
    let output = "";
    AbortSignal.timeout(patienceMs).addEventListener("abort", () =>
      reject(new Error(`${name} is not ready: ${output}`)),
    );
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on("data", (text) => {
        output += text;
        const match = pattern.exec(output);
        if (match) resolve(match);
      });
    }
    child.once("error", reject);
    child.once("exit", () => reject(new Error(`${name} ended: ${output}`)));
  });
}
