import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A server that is measured, as a process of its own. */
export interface Contestant {
  readonly name: string;
  /** The port for gRPC, or the only one. */
  readonly port: number;
  /** The port for Connect, where it is another. */
  readonly httpPort: number;
  /** From its start until it was ready, in milliseconds. */
  readonly startMs: number;
  /** The most memory that it ever had resident, in MB; undefined where the system does not tell. */
  peakMemoryMb(): number | undefined;
  stop(): Promise<void>;
}

const here = import.meta.dirname;

/** Starts a file of this folder, which prints the port that it serves on. */
export function startPeer(name: string, file: string, ...args: string[]): Promise<Contestant> {
  return start(name, [join(here, file), ...args], /^(\d+)$/m);
}

/** Starts the service as `npm start` does, on a database. */
export function startService(databaseUrl: string): Promise<Contestant> {
  const { scripts } = JSON.parse(readFileSync(join(here, "../package.json"), "utf8"));
  const [, , ...command] = scripts.start.split(" ");
  const settings = ["--database-url", databaseUrl, "--grpc-port", "0", "--http-port", "0"];
  return start(
    "Investor Records",
    [...command, ...settings],
    /grpc:\/\/[\d.]+:(\d+) and http:\/\/[\d.]+:(\d+)/,
  );
}

async function start(name: string, args: string[], ports: RegExp): Promise<Contestant> {
  const begun = performance.now();
  const child = spawn(process.execPath, args, {
    cwd: join(here, ".."),
    stdio: ["ignore", "pipe", "pipe"],
  });
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const [, port, httpPort = port] = await waitForOutput(name, child, ports);
  return {
    name,
    port: Number(port),
    httpPort: Number(httpPort),
    startMs: performance.now() - begun,
    peakMemoryMb() {
      if (process.platform !== "linux") return undefined;
      const status = readFileSync(`/proc/${child.pid}/status`, "utf8");
      return Number(/VmHWM:\s*(\d+)/.exec(status)?.[1]) / 1024;
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
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on("data", (text) => {
        output += text;
        const match = pattern.exec(output);
        if (match) resolve(match);
      });
    }
    child.once("exit", () => reject(new Error(`${name} ended: ${output}`)));
  });
}
