import { performServerHandshake, type ServerHttp2Session } from "node:http2";
import type { Socket } from "node:net";
import {
  type Connection,
  type EngineOptions,
  handshakeTimeoutMs,
  maxHeaderBytes,
} from "./connection.ts";
import type { ConnectionUsage } from "./connection-usage.ts";
import { replyTimeoutMs } from "./exchange.ts";
import { Http2Exchange } from "./http2-exchange.ts";

/** The most calls that one connection may have open. */
const maxConcurrentStreams = 128;

/** Timeout of a connection without calls, in milliseconds. */
const idleTimeoutMs = 5 * 60_000;

/**
 * The limit of a session's memory, in MB: none in effect, since its usage bounds it. Node.js goes on
 * counting what was unsent when a stream was reset, and refuses all calls at the limit.
 */
const maxSessionMemory = 2 ** 32 - 1;

/**
 * How many streams beyond {@link maxConcurrentStreams} a connection may open before it is closed. A
 * client may replace streams that it resets, which Node.js still counts if it reads both at once.
 */
const maxSessionRejectedStreams = 1_000;

/**
 * After how many streams the Map that a session keeps them in is replaced. As streams come and go, V8
 * gives a Map new tables, and the old ones refer to the newer: once a table is in the old generation,
 * it keeps all streams that come later in memory until all of the heap is collected.
 */
const streamsPerMap = 64;

/** How often a connection is asked whether its client is still there, in milliseconds. */
const pingIntervalMs = 60_000;

/** Timeout of the ping that shows that all the client had sent has arrived, in milliseconds. */
const drainPingMs = 1_000;

/** Speaks HTTP/2 (RFC 9113) on a connection. */
export function acceptHttp2(
  socket: Socket,
  usage: ConnectionUsage,
  { serve }: EngineOptions,
): Connection {
  const session = performServerHandshake(socket, {
    maxSessionMemory,
    maxSessionRejectedStreams,
    settings: { maxConcurrentStreams, maxHeaderListSize: maxHeaderBytes },
  });
  // Each stream may listen for the end of the connection.
  socket.setMaxListeners(0);
  let draining: Promise<void> | undefined;

  const handshake = setTimeout(() => socket.destroy(), handshakeTimeoutMs);
  session.once("remoteSettings", () => clearTimeout(handshake));
  // A client that leaves, or breaks the protocol, has lost its connection already.
  session.on("error", () => {});
  const state = stateOf(session);
  let opened = 0;
  session.on("stream", (stream, headers, _, rawHeaders) => {
    opened += 1;
    if (opened % streamsPerMap === 0) state.streams = new Map(state.streams);
    const exchange = new Http2Exchange(stream, headers, rawHeaders, socket, usage);
    exchange.usage.waitForRoom(() => serve(exchange));
  });

  const pings = setInterval(() => {
    // Running calls have deadlines, and the reply to a ping would wait behind those to the calls.
    if (usage.calls > 0) return;
    // Nobody replies to the ping of a session that has ended, and Node.js waits for its client.
    const isOver = session.closed || session.destroyed;
    if (isOver && usage.open === usage.watches) socket.destroy();
    else if (usage.open === 0 && performance.now() - usage.idleSince >= idleTimeoutMs) drain();
    else ping(replyTimeoutMs).then((isThere) => isThere || socket.destroy());
  }, pingIntervalMs).unref();
  socket.once("close", () => {
    clearTimeout(handshake);
    clearInterval(pings);
  });

  /** Whether the client replies in time; one whose session has ended need not. */
  async function ping(timeoutMs: number): Promise<boolean> {
    if (session.destroyed) return true;
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, timeoutMs, false);
      session.ping(() => {
        clearTimeout(timer);
        resolve(true);
      });
    });
  }

  async function drain(): Promise<void> {
    // What was sent before the reply is served, and GOAWAY names the last of it.
    draining ??= ping(drainPingMs).then(() => session.close());
    await draining;
  }

  return { retire: () => void drain(), drain };
}

/** What Node.js knows of a session. */
function stateOf(session: ServerHttp2Session): { streams?: Map<number, unknown> } {
  const key = Object.getOwnPropertySymbols(session).find(
    ({ description }) => description === "state",
  );
  return (session as never)[key as never] ?? {};
}
