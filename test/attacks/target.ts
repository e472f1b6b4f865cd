/** The service under attack, and the connections of those who attack it. */
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { request as requestHttp } from "node:http";
import {
  type ClientHttp2Session,
  connect as connectHttp2,
  type OutgoingHttpHeaders,
  type Settings,
} from "node:http2";
import { request as requestHttps } from "node:https";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { type ClientAuthority, createClientAuthority } from "../support/client-authority.ts";
import { temporaryFolder } from "../support/folder.ts";
import { type Issuer, startIssuer } from "../support/issuer.ts";
import { type Service, startService } from "../support/service.ts";
import { buildService } from "../support/sources.ts";
import { type Holdings, holdingsOf } from "./process-watch.ts";
import { secret, strangersText } from "./requests.ts";

/**
 * A service on loopback without credentials, or one on TLS that asks for a token of a file, an
 * OIDC token or a client certificate.
 */
export type TargetKind = "plain" | "TLS";

/** A port of the service. */
export type PortName = "grpc" | "http";

/** The tokens of the service on TLS; none appears in a log or a reply. */
export const tokens = {
  good: `${secret}-token-of-the-good-0123456789`,
  greedy: `${secret}-token-of-the-greedy-0123456789`,
};

/** A connection of an attacker. */
export interface Connection {
  /** What bytes are written to, encrypted if the service is on TLS. */
  readonly socket: Socket;
  /** What carries them. */
  readonly tcp: Socket;
  /** The first bytes that came back, as Latin-1. */
  received(): string;
  /** Resolves when it is closed, or after this time in ms. */
  closed(timeoutMs: number): Promise<boolean>;
}

/** How a connection is opened. */
export interface OpenOptions extends ConnectionOptions {
  /** What it speaks; HTTP/1.1 if absent. */
  protocol?: "http/1.1" | "h2";
  /** Whether it carries credentials, so that records may come back. */
  isKnown?: boolean;
  /** Whether the handshake may fail; otherwise a failure is thrown. */
  mayFail?: boolean;
}

/** How a session of HTTP/2 is opened. */
export interface SessionOptions extends ConnectionOptions {
  settings?: Settings;
}

/** How a request over HTTP/2 ended. */
export interface Reply {
  /** The status of HTTP; undefined if there was none. */
  readonly status: number | undefined;
  /** The status of gRPC, of the headers or the trailers. */
  readonly grpcStatus: string | undefined;
  readonly headers: Record<string, unknown>;
  readonly body: Buffer;
}

/** A service, and how to get at it. */
export interface Target {
  readonly kind: TargetKind;
  readonly service: Service;
  /** The certificate of the service's authority; undefined without TLS. */
  readonly ca: string | undefined;
  /** Signs the certificates of clients; undefined without TLS. */
  readonly clients: ClientAuthority | undefined;
  readonly issuer: Issuer | undefined;
  /** The headers of the caller who asks for more than its share; none without TLS. */
  readonly greedy: Record<string, string>;
  /** Opens a connection, on TLS after its handshake. */
  open(port: PortName, options?: OpenOptions): Promise<Connection>;
  /** Opens a connection before any handshake. */
  openTcp(port: PortName): Promise<Connection>;
  /** Opens a session of HTTP/2; the HTTP port has it on TLS only. */
  session(port: PortName, options?: SessionOptions): Promise<ClientHttp2Session>;
  /** Makes a request on a session, and waits for at most 10 s for its end. */
  ask(session: ClientHttp2Session, headers: OutgoingHttpHeaders, body?: Uint8Array): Promise<Reply>;
  /** The same on the session of somebody with a certificate, to whom records may come back. */
  askKnown: Target["ask"];
  /** Makes a request by HTTP/1.1 on a connection of its own. */
  request(
    path: string,
    options?: { method?: string; headers?: Record<string, string>; body?: string | Uint8Array },
  ): Promise<{ status: number; headers: Record<string, unknown>; text: string }>;
  /** The value of a metric; 0 if it is not there. */
  metric(name: string): Promise<number>;
  /** What its process holds. */
  holdings(): Partial<Holdings>;
  /** Secrets that came back to those who showed no credentials. */
  leaks(): string[];
  /** How many records hold what only those sent who may not. */
  strangersRecords(): number;
  /** Closes all connections that attackers have left. */
  release(): void;
  /** Ends the service; resolves with its exit code. */
  stop(): Promise<number | NodeJS.Signals>;
}

/** Starts a service with its default limits, but for the settings given. */
export async function startTarget(
  kind: TargetKind,
  settings: NodeJS.ProcessEnv = {},
): Promise<Target> {
  const folder = temporaryFolder();
  const isTls = kind === "TLS";
  const authority = isTls ? await createAuthority() : undefined;
  const clients = isTls ? createClientAuthority() : undefined;
  const issuer = isTls ? await startIssuer() : undefined;
  const env: NodeJS.ProcessEnv = { REQUEST_TIMEOUT: "2s", ...settings };
  if (authority && clients && issuer) {
    writeFileSync(join(folder, "tokens"), `good ${tokens.good}\ngreedy ${tokens.greedy}\n`);
    writeFileSync(join(folder, "clients.crt"), clients.ca);
    Object.assign(env, await writeServerFiles(folder, authority), {
      AUTH_TOKENS_FILE: "tokens",
      TLS_CLIENT_CA: "clients.crt",
      OIDC_ISSUER: issuer.url,
      OIDC_AUDIENCE: "investors",
    });
  }
  const service = await startService(env, folder, buildService(join(folder, "service")));
  const ca = authority?.ca;
  const ports = { grpc: service.grpcPort, http: service.httpPort };
  const open = new Set<{ destroy(): unknown }>();
  const leaked: string[] = [];

  /** Looks for secrets in what comes back; on the plain service, records are for everybody. */
  function inspect(bytes: Buffer | string): void {
    const text = bytes.toString("latin1");
    const at = isTls ? text.indexOf(secret) : -1;
    if (at >= 0) leaked.push(text.slice(Math.max(0, at - 200), at + 50));
  }

  function own<T extends Socket | ClientHttp2Session>(one: T): T {
    open.add(one);
    one.on("error", () => {});
    one.once("close", () => open.delete(one));
    return one;
  }

  function follow(socket: Socket, tcp: Socket, isKnown = false): Connection {
    const closing = new Promise<void>((resolve) => {
      if (tcp.destroyed) resolve();
      tcp.once("close", () => resolve());
    });
    let text = "";
    let end = "";
    socket.on("data", (chunk) => {
      const some = chunk.toString("latin1");
      if (text.length < 65_536) text += some;
      // What is looked for may be cut in two.
      if (!isKnown) inspect(end + some);
      end = some.slice(-secret.length);
    });
    return {
      socket,
      tcp,
      received: () => text,
      closed: (timeoutMs) =>
        within(
          closing.then(() => true),
          timeoutMs,
          false,
        ),
    };
  }

  async function connectTcp(port: PortName): Promise<Socket> {
    const tcp = own(connect(ports[port], "127.0.0.1"));
    await Promise.race([once(tcp, "connect"), once(tcp, "close")]).catch(() => {});
    return tcp;
  }

  async function connectTo(
    port: PortName,
    protocol: string,
    { mayFail = false, ...options }: ConnectionOptions & Pick<OpenOptions, "mayFail"> = {},
  ) {
    const tcp = await connectTcp(port);
    if (!isTls || tcp.destroyed) return { tcp, socket: tcp };
    const socket = own(
      connectTls({
        socket: tcp,
        ca,
        servername: "localhost",
        ALPNProtocols: [protocol],
        ...options,
      }),
    );
    const isSecure = await within(
      new Promise<boolean>((resolve) => {
        socket.once("secureConnect", () => resolve(true)).once("close", () => resolve(false));
      }),
      10_000,
      false,
    );
    if (!isSecure && !mayFail) throw new Error(`no handshake on ${port}: ${socket.errored}`);
    return { tcp, socket };
  }

  const target: Target = {
    kind,
    service,
    ca,
    clients,
    issuer,
    greedy: isTls ? { authorization: `Bearer ${tokens.greedy}` } : {},
    async open(port, { protocol = "http/1.1", isKnown, ...options } = {}) {
      const { tcp, socket } = await connectTo(port, protocol, options);
      return follow(socket, tcp, isKnown);
    },
    async openTcp(port) {
      const tcp = await connectTcp(port);
      return follow(tcp, tcp);
    },
    async session(port, options = {}) {
      const { settings = {}, ...tls } = options;
      const { socket } = await connectTo(port, "h2", tls);
      const scheme = isTls ? "https" : "http";
      const createConnection = () => socket;
      return own(connectHttp2(`${scheme}://localhost`, { settings, createConnection }));
    },
    async ask(session, headers, body) {
      const reply = await askOn(session, headers, body);
      const { authorization = "" } = headers;
      if (!String(authorization).includes(secret)) inspect(reply.body);
      return reply;
    },
    askKnown: askOn,
    request: (path, { method = "GET", headers = {}, body } = {}) =>
      new Promise((resolve, reject) => {
        const options = {
          host: "127.0.0.1",
          port: ports.http,
          path,
          method,
          headers,
          agent: false,
        };
        const req = isTls ? requestHttps({ ...options, ca }) : requestHttp(options);
        req.setTimeout(10_000, () =>
          req.destroy(new Error(`no reply to ${method} ${path} in 10 s`)),
        );
        req.on("error", reject);
        req.on("response", (res) => {
          let text = "";
          res.setEncoding("latin1").on("data", (chunk) => {
            text += chunk;
          });
          res.on("error", reject);
          res.on("end", () => {
            if (!Object.values(headers).some((value) => value.includes(secret))) inspect(text);
            resolve({ status: Number(res.statusCode), headers: res.headers, text });
          });
        });
        req.end(body);
      }),
    async metric(name) {
      const headers = isTls ? { authorization: `Bearer ${tokens.good}` } : undefined;
      const { text } = await target.request("/metrics", headers && { headers });
      const line = text.split("\n").find((each) => each.startsWith(`${name} `));
      return Number(line?.split(" ").at(-1) ?? 0);
    },
    holdings: () => holdingsOf(service.child.pid) ?? {},
    leaks: () => leaked,
    strangersRecords() {
      const db = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
      try {
        const { count } = db
          .prepare("SELECT count(*) AS count FROM investors WHERE first_name || city LIKE ?")
          .get(`%${strangersText}%`) as { count: number };
        return count;
      } finally {
        db.close();
      }
    },
    release() {
      // What encrypts another socket comes after that. Node.js crashes if it is destroyed second.
      for (const each of [...open].reverse()) each.destroy();
    },
    async stop() {
      target.release();
      service.child.kill("SIGTERM");
      const code = await within(service.exited, 30_000, undefined);
      if (code !== undefined) return code;
      service.child.kill("SIGKILL");
      return service.exited;
    },
  };
  return target;
}

/** Makes a request on a session, and waits for at most 10 s for its end. */
async function askOn(
  session: ClientHttp2Session,
  headers: OutgoingHttpHeaders,
  body?: Uint8Array,
): Promise<Reply> {
  const seen: Record<string, unknown> = {};
  const chunks: Buffer[] = [];
  if (!session.destroyed && !session.closed) {
    const stream = session.request(headers).on("error", () => {});
    stream.on("response", (fields) => Object.assign(seen, fields));
    stream.on("trailers", (fields) => Object.assign(seen, fields));
    stream.on("data", (chunk: Buffer) => chunks.push(chunk));
    const closed = new Promise((resolve) => stream.once("close", resolve));
    stream.end(body);
    await within(closed, 10_000, undefined);
  }
  const { ":status": status, "grpc-status": grpcStatus } = seen;
  return {
    status: status === undefined ? undefined : Number(status),
    grpcStatus: grpcStatus === undefined ? undefined : String(grpcStatus),
    headers: seen,
    body: Buffer.concat(chunks),
  };
}

/** What comes of a promise, or something else after this time in ms. */
export async function within<T, U>(promise: Promise<T>, timeoutMs: number, otherwise: U) {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<U>((resolve) => {
    timer = setTimeout(resolve, timeoutMs, otherwise);
  });
  return Promise.race([promise, timeout]).finally(() => clearTimeout(timer));
}
