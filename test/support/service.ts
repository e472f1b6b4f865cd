import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { v7 } from "uuid";
import { inject, onTestFinished, vi } from "vitest";
import { InvestorService, type InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { insertSql, toRow } from "../../src/store/sqlite/schema.ts";
import { clientsOf } from "./clients.ts";
import { temporaryFolder } from "./folder.ts";
import { frame } from "./raw-grpc.ts";
import { aCreate, anInvestor } from "./records.ts";

/** What runs the service; another version of Node.js than that of the tests, if this names one. */
const node = process.env.TEST_NODE ?? process.execPath;

/** The setting of a service that chooses its port; the log has it. */
export const anyPort = { PORT: "0" };

/** The command line as a child process, and all that it has written. */
export interface Run {
  readonly child: ChildProcess;
  /** Its standard output and error so far, and the same apart. */
  output(): string;
  readonly written: Readonly<Record<"stdout" | "stderr", string>>;
  /** Resolves with its exit code, or the signal that ended it. */
  readonly exited: Promise<number | NodeJS.Signals>;
}

/** A service that runs and takes calls. */
export interface Service extends Run {
  readonly port: number;
  readonly folder: string;
}

/** Runs the command line in a folder, with no setting but those given and, unless it is, a free port. */
export function run(
  args: string[],
  env: NodeJS.ProcessEnv,
  folder: string,
  program = inject("bin"),
): Run {
  const all = { PATH: process.env.PATH, ...anyPort, ...env };
  const child = spawn(node, [program, ...args], { cwd: folder, env: all });
  return follow(child, () => child.kill("SIGKILL"));
}

/** Runs a program in a process group of its own, which ends with the test. */
export function runGroup(program: string, args: string[], options: SpawnOptions): Run {
  const child = spawn(program, args, { ...options, detached: true });
  return follow(child, () => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    } catch {
      // It has ended by itself.
    }
  });
}

/** Whether a process has ended, by itself or by a signal. */
export function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null;
}

function follow(child: ChildProcess, kill: () => void): Run {
  let output = "";
  const written = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name]?.setEncoding("utf8").on("data", (text) => {
      output += text;
      written[name] += text;
    });
  }
  const exited = once(child, "close").then(([code, signal]) => code ?? signal);
  onTestFinished(async () => {
    kill();
    await exited;
  });
  return { child, output: () => output, written, exited };
}

/** Ends a process by a signal; resolves with its exit code, or the signal if that ended it. */
export function end({ child, exited }: Run, signal: NodeJS.Signals = "SIGTERM") {
  child.kill(signal);
  return exited;
}

/** Starts the service, as it is built, on a free port and waits until it says that it serves. */
export async function startService(
  env: NodeJS.ProcessEnv = {},
  folder = temporaryFolder(),
  program = inject("bin"),
): Promise<Service> {
  const running = run([], env, folder, program);
  const [, port] = await waitFor(async () => {
    const { child, output } = running;
    if (hasEnded(child)) throw new Error(`it ended: ${output()}`);
    return /serving .* on (?:http|grpc)s?:\/\/[^ "]*:(\d+)/.exec(output()) ?? undefined;
  });
  return { ...running, port: Number(port), folder };
}

/** A client of the service by gRPC; each has a connection of its own. */
export function grpcClient({ port }: Pick<Service, "port">) {
  return clientsOf({ port }).gRPC;
}

/** The body of a create by gRPC; its call waits for it as long as REQUEST_TIMEOUT. */
export function createBody(): Buffer {
  const { input } = InvestorService.method.createInvestor;
  return frame(toBinary(input, create(input, aCreate())));
}

/**
 * Holds the write lock of a service's SQLite file until the result is called or the test is over.
 * Creates wait for it, but fail after SQLite's busy timeout, however long REQUEST_TIMEOUT is.
 */
export function lockDatabase({ folder }: Pick<Service, "folder">): () => void {
  const db = openDatabase(folder);
  db.exec("BEGIN IMMEDIATE");
  const release = () => {
    if (db.isOpen) db.close();
  };
  onTestFinished(release);
  return release;
}

/** Stores what is no record beside a service. A get of this id, and lists that meet it, are INTERNAL. */
export function storeWrong({ folder }: Pick<Service, "folder">, id = v7()): string {
  const wrong = anInvestor({ id, type: 7 as InvestorType });
  const db = openDatabase(folder);
  db.prepare(insertSql).run(...toRow(wrong));
  db.close();
  return id;
}

/** Opens the file beside its service, whose writer is waited for. */
function openDatabase(folder: string): DatabaseSync {
  return new DatabaseSync(`${folder}/data/investors.db`, { timeout: inject("waitMs") });
}

/** Whether somebody listens on a port. */
export async function accepts(port: number): Promise<boolean> {
  const socket = connect(port, "127.0.0.1");
  const isOpen = await once(socket, "connect").then(
    () => true,
    () => false,
  );
  socket.destroy();
  return isOpen;
}

/** Waits until a process has written a text or ended, and learns of it at once. */
export async function untilWritten({ child, output, exited }: Run, text: string): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const look = () => void (output().includes(text) && resolve());
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", look);
  look();
  await Promise.race([promise, exited]);
}

/** Requests a path of a service over HTTP/1.1. */
export function ask({ port }: Pick<Service, "port">, path: string, init?: RequestInit) {
  return fetch(`http://127.0.0.1:${port}${path}`, init);
}

/** Whose metrics are read, with its credentials if it asks for some. */
interface Measured {
  readonly port: number;
  readonly authorization?: string;
}

/** The metrics of a service as text. */
export async function readMetrics({ port, authorization }: Measured): Promise<string> {
  const headers = authorization === undefined ? {} : { authorization };
  return (await ask({ port }, "/metrics", { headers })).text();
}

/** The value of a metric of a service, under the labels that it has; 0 if it is not there. */
export async function metric(service: Measured, name: string, labels = ""): Promise<number> {
  const text = await readMetrics(service);
  const line = text.split("\n").find((each) => each.startsWith(`${name}${labels} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

/** Waits until a service has this many calls in flight. */
export async function untilInFlight(service: Measured, count: number): Promise<void> {
  const name = "investor_records_rpc_server_calls_in_flight";
  await waitFor(async () => (await metric(service, name)) === count);
}

/** Tries until there is a result, for as long as `expect.poll` does. */
export function waitFor<T>(attempt: () => T | Promise<T>) {
  return vi.waitUntil(attempt, { timeout: inject("waitMs"), interval: 20 });
}

/** Waits until what is read, at intervals of 200 ms, is the same five times. */
export async function untilStill(read: () => unknown): Promise<void> {
  const seen: unknown[] = [];
  const isStill = async () => {
    seen.push(await read());
    return seen.length >= 5 && new Set(seen.slice(-5)).size === 1;
  };
  await vi.waitUntil(isStill, { timeout: inject("waitMs"), interval: 200 });
}

/**
 * The NODE_OPTIONS of a process that runs a module first. What no setting changes can be looked at only
 * from within: the limits of half a minute and more, the signal between two statements, the heap.
 */
export function preload(script: string): string {
  return `--import=data:text/javascript,${encodeURIComponent(script)}`;
}

/**
 * The NODE_OPTIONS of a service whose clock and timers, or only some, run so many times as fast: the
 * limits of docs/operation.md are no settings, and some are minutes.
 */
export function hurry(times: number, timers = ["setTimeout", "setInterval"]): string {
  const script = `
    import { syncBuiltinESMExports } from "node:module";
    import promises from "node:timers/promises";
    for (const name of ${JSON.stringify(timers)}) {
      const start = globalThis[name];
      globalThis[name] = (work, ms, ...args) => start(work, ms / ${times}, ...args);
    }
    if (${timers.includes("setTimeout")}) {
      const wait = promises.setTimeout;
      promises.setTimeout = (ms, ...args) => wait(ms / ${times}, ...args);
      syncBuiltinESMExports();
    }
    const now = performance.now.bind(performance);
    performance.now = () => ${times} * now();`;
  return preload(script);
}
