/** The service under attack, and its hostile clients. */
import { once } from "node:events";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  writeFileSync,
} from "node:fs";
import { connect, type Socket } from "node:net";
import { basename, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls, setDefaultCACertificates } from "node:tls";
import { onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "../../support/certificates.ts";
import { makeSqlite } from "../../support/copying.ts";
import { temporaryFolder } from "../../support/folder.ts";
import type { Fields } from "../../support/http2-frames.ts";
import type { Random } from "../../support/random.ts";
import { textOfAll } from "../../support/records.ts";
import { end, hasEnded, startService, waitFor } from "../../support/service.ts";

/** Whether nothing else is tested beside, as by `npm run attack`. */
export const isAlone = process.env.ATTACK_MINUTES !== undefined;

export type Kind = "plain" | "TLS";
export type Protocol = "h2" | "http/1.1";

/** Text by which records are told apart: those of good callers, of the greedy one, of strangers. */
export const marks = { good: "S3CRET", greedy: "GR33DY", stranger: "STR4NGER" };
const tokens = {
  good: `${marks.good}-token-of-the-good-0123456789`,
  greedy: `${marks.good}-token-of-the-greedy-0123456789`,
};

/** A connection of a hostile client. */
export interface Connection {
  /** Takes what the client sends; encrypts it if the service has TLS. */
  readonly socket: Socket;
  /** The connection below TLS; the same socket without TLS. */
  readonly tcp: Socket;
  /** Whether the service closes it within this time in ms. */
  closes(timeoutMs: number): Promise<boolean>;
}

/** A hostile client: a stranger, or a caller with a token who asks for more than its share. */
export interface Hostile {
  readonly random: Random;
  /** The fields with its token, if it has one. */
  readonly credentials: Fields;
  /** Is in every record that it sends. */
  readonly mark: string;
  /** Opens a connection for a protocol, or before any handshake; the service may have closed it. */
  open(on: Protocol | "tcp"): Promise<Connection>;
}

/** How much of what the process of the service holds comes and goes without any attack. */
const slack = { calls: 0, timers: 10, sockets: 2, descriptors: 5 };
type Holdings = typeof slack;
const all = Object.keys(slack) as (keyof Holdings)[];

/** One connection of a hostile client, from its opening to its end. */
export type Attack = (hostile: Hostile) => Promise<unknown>;

/** Resolves after this time in ms. */
const timeout = (ms: number) => delay(ms, undefined, { ref: false });

export type Target = Awaited<ReturnType<typeof startTarget>>;

/** The memory of a container that the manifests allow, in bytes. */
const memoryLimit = 768 * 2 ** 20;

/** Where cgroup v1 or v2 has groups of processes, and the file of a group with its limit. */
const [groups, limitFile] = existsSync("/sys/fs/cgroup/memory")
  ? ["/sys/fs/cgroup/memory", "memory.limit_in_bytes"]
  : ["/sys/fs/cgroup", "memory.max"];

/** Has a process end if it takes more memory than in a container, where this user may set that. */
function limitMemory(group: string, pid: number): void {
  try {
    mkdirSync(group);
    writeFileSync(join(group, limitFile), String(memoryLimit));
    writeFileSync(join(group, "cgroup.procs"), String(pid));
  } catch {
    // Then the peak is looked at alone.
  }
}

/** Removes a group, which only an empty one can be. */
function isRemoved(group: string): boolean {
  try {
    rmdirSync(group);
  } catch {}
  return !existsSync(group);
}

/** Starts the service as in a container, with tokens. */
export async function startTarget(kind: Kind) {
  const folder = temporaryFolder();
  // Two pages.
  const texts = textOfAll("\u{1F600}".repeat(250) + marks.good);
  await makeSqlite(folder, "data/investors.db", 260, texts);
  const env: NodeJS.ProcessEnv = {
    // Less than Node.js takes by itself in a container of 768 MiB; with more, V8 collects later.
    NODE_OPTIONS: "--max-old-space-size=224",
    AUTH_TOKENS_FILE: "tokens",
    REQUEST_TIMEOUT: "3s",
  };
  writeFileSync(join(folder, "tokens"), `good ${tokens.good}\ngreedy ${tokens.greedy}\n`);
  const authority = kind === "TLS" ? await createAuthority() : undefined;
  if (authority) {
    Object.assign(env, await writeServerFiles(folder, authority));
    setDefaultCACertificates([authority.ca]);
  }
  const group = join(groups, basename(folder));
  // After the service has ended, since it was registered before.
  onTestFinished(async () => void (await waitFor(() => isRemoved(group))));
  const service = await startService(env, folder);
  const { child, exited, output } = service;
  limitMemory(group, Number(child.pid));
  const throwOnceEnded = exited.then(() => {
    throw new Error(`the process ended: ${output().slice(-2_000)}`);
  });
  throwOnceEnded.catch(() => {});
  const httpUrl = `${authority ? "https" : "http"}://127.0.0.1:${service.port}`;
  const sockets = new Set<Socket>();
  const leaks: string[] = [];

  function own(socket: Socket): Socket {
    sockets.add(socket);
    return socket.on("error", () => {}).once("close", () => sockets.delete(socket));
  }

  /** Waits until a socket is open or closed, or for five seconds. */
  async function settle(socket: Socket, event: string): Promise<void> {
    const events = [event, "close"].map((name) => once(socket, name).catch(() => {}));
    await Promise.race([...events, timeout(5_000)]);
  }

  async function open(on: Protocol | "tcp"): Promise<[tcp: Socket, socket: Socket]> {
    const tcp = own(connect(service.port, "127.0.0.1"));
    await settle(tcp, "connect");
    if (authority === undefined || on === "tcp" || tcp.destroyed) return [tcp, tcp];
    const options = { socket: tcp, servername: "localhost", ALPNProtocols: [on] };
    const socket = own(connectTls(options));
    await settle(socket, "secureConnect");
    return [tcp, socket];
  }

  /** Looks for what must not come back. */
  function follow(tcp: Socket, socket: Socket, isStranger: boolean): Connection {
    const closed = tcp.destroyed ? Promise.resolve() : new Promise((done) => tcp.on("close", done));
    // A stranger must see neither a record nor a metric, and nobody a token.
    const leak = new RegExp(isStranger ? `${marks.good}|# TYPE ` : `${marks.good}-token`);
    let last = "";
    socket.on("data", (chunk: Buffer) => {
      const some = last + chunk.toString("latin1");
      if (leak.test(some)) leaks.push(some.slice(0, 1_000));
      last = some.slice(-20);
    });
    return {
      socket,
      tcp,
      closes: (timeoutMs) =>
        Promise.race([closed.then(() => true), timeout(timeoutMs).then(() => false)]),
    };
  }

  async function readMetrics(): Promise<string> {
    const headers = { authorization: `Bearer ${tokens.good}` };
    return (await fetch(`${httpUrl}/metrics`, { headers })).text();
  }

  /** What the process holds. */
  async function holdings(): Promise<Holdings> {
    const metrics = await readMetrics();
    const value = (name: string) => Number(metrics.split(`\n${name} `)[1]?.split("\n")[0] ?? 0);
    return {
      calls: value("investor_records_rpc_server_calls_in_flight"),
      timers: value('nodejs_active_resources{type="Timeout"}'),
      sockets: value('nodejs_active_resources{type="TCPSocketWrap"}'),
      descriptors: readdirSync(`/proc/${child.pid}/fd`).length,
    };
  }

  return {
    output,
    /** What good callers have to know. */
    addresses: {
      ...{ port: service.port, httpUrl, ca: authority?.ca },
      ...{ token: tokens.good, mark: marks.good },
    },
    /** What hostile clients received that they must not. */
    leaks,
    /** Rejects with the last lines of the service once it has ended. */
    throwOnceEnded,
    isAlive: () => !hasEnded(child),
    hostile(random: Random, isStranger = random.int(0, 1) === 0): Hostile {
      return {
        random,
        credentials: isStranger ? {} : { authorization: `Bearer ${tokens.greedy}` },
        mark: isStranger ? marks.stranger : marks.greedy,
        open: async (on) => follow(...(await open(on)), isStranger),
      };
    },
    /** Closes all connections of hostile clients. */
    closeAll() {
      // The socket of TLS comes after the one below it; Node.js crashes if it is destroyed last.
      for (const each of [...sockets].reverse()) each.destroy();
    },
    readMetrics,
    holdings,
    /** What the process holds more of than it did once. */
    async excess(initial: Holdings, names = all): Promise<string[]> {
      const now = await holdings();
      return names
        .filter((name) => now[name] > initial[name] + slack[name])
        .map((name) => `${initial[name]} ${name} before, ${now[name]} now`);
    },
    /** How long the main thread has run, or had no core to run on, in ms (proc_pid_schedstat). */
    busyMs() {
      const [ran, waited] = readFileSync(`/proc/${child.pid}/schedstat`, "utf8").split(" ");
      return (Number(ran) + Number(waited)) / 1e6;
    },
    /** The most memory in MB since it was reset (proc_pid_status(5), proc_pid_clear_refs(5)). */
    peakMb() {
      const status = readFileSync(`/proc/${child.pid}/status`, "utf8");
      return Math.round(Number(/VmHWM:\s*(\d+)/.exec(status)?.[1]) / 1024);
    },
    resetPeak: () => writeFileSync(`/proc/${child.pid}/clear_refs`, "5"),
    /** How many records strangers have stored. */
    recordsOfStrangers(): number {
      using db = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
      const sql = "SELECT count(*) AS count FROM investors WHERE first_name || city LIKE ?";
      return Number(db.prepare(sql).get(`%${marks.stranger}%`)?.count);
    },
    /** Ends the service; resolves with its exit code. */
    stop() {
      this.closeAll();
      return end(service);
    },
  };
}
