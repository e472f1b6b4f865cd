/** The service under attack, and the connections of its hostile clients. */
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import type { Random } from "../support/random.ts";
import { startService } from "../support/service.ts";
import { buildService } from "../support/sources.ts";

export type Kind = "plain" | "TLS";
export type Port = "grpc" | "http";
export type Protocol = "http/1.1" | "h2";
export type Fields = Record<string, string>;

/** In every token, and in every record of the good callers. */
export const secret = "S3CRET";
export const tokens = {
  good: `${secret}-token-of-the-good-0123456789`,
  greedy: `${secret}-token-of-the-greedy-0123456789`,
};

/** In every record that is sent without credentials, or hidden in another request. */
export const forbidden = "STRANGER";

/** In every record that the greedy caller may store. */
const allowed = "CUSTOMER";

/** A connection of a hostile client. */
export interface Connection {
  /** Takes what the client sends; encrypts it if the service has TLS. */
  readonly socket: Socket;
  /** The connection below TLS; the same socket without TLS. */
  readonly tcp: Socket;
  /** The first 64 KiB that came back, as Latin-1. */
  received(): string;
  /** Whether the service closes it within this time in ms. */
  closes(timeoutMs: number): Promise<boolean>;
}

/** A hostile client: a stranger, or a caller who has a token and asks for more than its share. */
export interface Hostile {
  readonly kind: Kind;
  readonly random: Random;
  /** Its credentials, if it has any. */
  readonly credentials: Fields;
  /** Is in all records that it sends. */
  readonly text: string;
  /** Opens a connection; it may be closed already if the service refused it. */
  open(port: Port, protocol?: Protocol): Promise<Connection>;
  /** Opens a connection before any handshake. */
  openTcp(port: Port): Promise<Connection>;
}

/** One connection of a hostile client, from its opening to its end. */
export type Attack = (hostile: Hostile) => Promise<unknown>;

/** What the service's process holds. */
export interface Holdings {
  readonly calls: number;
  readonly timers: number;
  readonly sockets: number;
  readonly descriptors: number;
}

export type Target = Awaited<ReturnType<typeof startTarget>>;

/** Starts the service, with a tokens file, as `npm start` does. */
export async function startTarget(kind: Kind) {
  const folder = temporaryFolder();
  const authority = kind === "TLS" ? await createAuthority() : undefined;
  const ca = authority?.ca;
  writeFileSync(join(folder, "tokens"), `good ${tokens.good}\ngreedy ${tokens.greedy}\n`);
  const env = {
    AUTH_TOKENS_FILE: "tokens",
    REQUEST_TIMEOUT: "3s",
    ...(authority && (await writeServerFiles(folder, authority))),
  };
  const service = await startService(env, folder, buildService(join(folder, "service")));
  const { child, exited } = service;
  const ports = { grpc: service.grpcPort, http: service.httpPort };
  const open = new Set<Socket>();
  const leaks: string[] = [];
  let connections = 0;

  function own(socket: Socket): Socket {
    open.add(socket);
    return socket.on("error", () => {}).once("close", () => open.delete(socket));
  }

  async function connectTcp(port: Port): Promise<Socket> {
    connections += 1;
    const tcp = own(connect(ports[port], "127.0.0.1"));
    await within(5_000, once(tcp, "connect"));
    return tcp;
  }

  async function connectTo(port: Port, protocol: Protocol) {
    const tcp = await connectTcp(port);
    if (ca === undefined || tcp.destroyed) return { tcp, socket: tcp };
    const options = { ca, servername: "localhost", ALPNProtocols: [protocol] };
    const socket = own(connectTls({ socket: tcp, ...options }));
    await within(5_000, Promise.race([once(socket, "secureConnect"), once(socket, "close")]));
    return { tcp, socket };
  }

  /** Keeps the beginning of what comes back, and looks for what must not. */
  function follow(tcp: Socket, socket: Socket, isStranger: boolean): Connection {
    const closed = tcp.destroyed ? Promise.resolve() : new Promise((done) => tcp.on("close", done));
    // A stranger must see neither a record nor a metric, and nobody a token.
    const leak = isStranger ? new RegExp(`${secret}|# TYPE `) : new RegExp(`${secret}-token`);
    let text = "";
    let last = "";
    socket.on("data", (chunk: Buffer) => {
      const some = last + chunk.toString("latin1");
      if (text.length < 65_536) text += some.slice(last.length);
      if (leak.test(some)) leaks.push(some.slice(0, 1_000));
      last = some.slice(-20);
    });
    return {
      socket,
      tcp,
      received: () => text,
      closes: (timeoutMs) =>
        Promise.race([closed.then(() => true), delay(timeoutMs, false, { ref: false })]),
    };
  }

  /** The reply to a GET with credentials. */
  async function get(path: string): Promise<string> {
    const { tcp, socket } = await connectTo("http", "http/1.1");
    const { received, closes } = follow(tcp, socket, false);
    const authorization = `Bearer ${tokens.good}`;
    socket.write(http1("GET", path, { authorization, connection: "close" }));
    if (!(await closes(10_000))) throw new Error(`no reply to GET ${path}`);
    return received();
  }

  return {
    kind,
    service,
    ca,
    get,
    /** What hostile clients received that they must not. */
    leaks,
    /** How many connections were opened to it. */
    connections: () => connections,
    isAlive: () => child.exitCode === null && child.signalCode === null,
    /** A client that shows a token, or none. */
    hostile(random: Random): Hostile {
      const isStranger = random.int(0, 1) === 0;
      return {
        kind,
        random,
        credentials: isStranger ? {} : { authorization: `Bearer ${tokens.greedy}` },
        text: isStranger ? forbidden : allowed,
        async open(port, protocol = port === "grpc" ? "h2" : "http/1.1") {
          const { tcp, socket } = await connectTo(port, protocol);
          return follow(tcp, socket, isStranger);
        },
        async openTcp(port) {
          const tcp = await connectTcp(port);
          return follow(tcp, tcp, isStranger);
        },
      };
    },
    /** Closes all connections of hostile clients. */
    closeAll() {
      // The socket of TLS comes after the one below it, and Node.js crashes if it is destroyed last.
      for (const each of [...open].reverse()) each.destroy();
    },
    async holdings(): Promise<Holdings> {
      const metrics = await get("/metrics");
      const value = (name: RegExp) => Number(name.exec(metrics)?.[1] ?? 0);
      return {
        calls: value(/^\w*rpc_server_calls_in_flight (\d+)/m),
        timers: value(/^nodejs_active_resources{type="Timeout"} (\d+)/m),
        sockets: value(/^nodejs_active_resources{type="TCPSocketWrap"} (\d+)/m),
        descriptors: readdirSync(`/proc/${child.pid}/fd`).length,
      };
    },
    /** How long the main thread was ready to run but had no core, in ms (proc_pid_schedstat). */
    waitedMs: () =>
      Number(readFileSync(`/proc/${child.pid}/schedstat`, "utf8").split(" ")[1]) / 1e6,
    /** Forgets the peak of memory so far (proc_pid_clear_refs(5)). */
    resetPeak: () => writeFileSync(`/proc/${child.pid}/clear_refs`, "5"),
    /** How many records are stored that nobody was allowed to create. */
    forbiddenRecords(): number {
      const db = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
      const sql = "SELECT count(*) AS count FROM investors WHERE first_name || city LIKE ?";
      const { count } = db.prepare(sql).get(`%${forbidden}%`) as { count: number };
      db.close();
      return count;
    },
    /** Ends the service; resolves with its exit code. */
    async stop(): Promise<number | NodeJS.Signals> {
      this.closeAll();
      child.kill("SIGTERM");
      await within(30_000, exited);
      child.kill("SIGKILL");
      return exited;
    },
  };
}

/** A request of HTTP/1.1. */
export function http1(method: string, path: string, fields: Fields, body?: Uint8Array | string) {
  const all: Fields = { host: "localhost", ...fields };
  if (body !== undefined) all["content-length"] ??= String(Buffer.byteLength(body));
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  const head = Buffer.from(`${method} ${path} HTTP/1.1\r\n${lines.join("")}\r\n`, "latin1");
  return Buffer.concat([head, Buffer.from(body ?? "")]);
}

/** Waits for a promise to settle, but not longer than this. */
async function within(timeoutMs: number, promise: Promise<unknown>): Promise<void> {
  const timeout = new AbortController();
  const late = delay(timeoutMs, undefined, { signal: timeout.signal });
  await Promise.race([promise.catch(() => {}), late.catch(() => {})]);
  timeout.abort();
}
