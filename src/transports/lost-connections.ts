import type { Http2Session, ServerHttp2Stream } from "node:http2";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

/**
 * Closes connections of HTTP/2 on TLS that are gone without Node.js having noticed. If a write of
 * TLS fails and another one follows in the same turn, that one never ends, and while it lasts the
 * session reads nothing, not even that its connection was reset.
 */
export interface LostConnections {
  /** Wraps what begins a session on a connection. */
  watch(begin: (socket: TLSSocket) => void): (socket: TLSSocket) => void;
  /** Looks after the connection of a stream at short intervals while the stream is open. */
  follow(stream: ServerHttp2Stream): void;
}

interface Connection {
  readonly socket: TLSSocket;
  session: Http2Session | undefined;
  openStreams: number;
}

/** How often connections are looked at, in milliseconds. */
const intervalMs = 3_000;

/**
 * The intervals without a write after which a connection without open streams is looked at, and
 * one that never had any is closed.
 */
const idleIntervals = 20;

/** Makes a watch over the connections of one listener. */
export function createLostConnections(): LostConnections {
  const connections = new Map<string, Connection>();

  function lookAfter(socket: TLSSocket): void {
    const peer = peerOf(socket);
    const connection = { socket, session: undefined, openStreams: 0 };
    connections.set(peer, connection);
    const timer = setInterval(createCheck(connection), intervalMs).unref();
    socket.once("close", () => {
      clearInterval(timer);
      connections.delete(peer);
    });
  }

  return {
    watch: (begin) => (socket) => {
      socket.on("error", () => {});
      if (socket.alpnProtocol === "h2") lookAfter(socket);
      begin(socket);
    },

    follow(stream) {
      const { session } = stream;
      const connection = session && connections.get(peerOf(session.socket));
      if (connection === undefined) return;
      connection.session = session;
      connection.openStreams += 1;
      stream.once("close", () => {
        connection.openStreams -= 1;
      });
    },
  };
}

/** Makes a function that closes a connection if not even a ping could be written to it. */
function createCheck(connection: Connection): () => void {
  const { socket } = connection;
  let bytesWritten = 0;
  let quietIntervals = 0;
  let isAsked = false;

  return () => {
    const { session, openStreams } = connection;
    if (socket.bytesWritten !== bytesWritten) {
      bytesWritten = socket.bytesWritten;
      quietIntervals = 0;
      isAsked = false;
      return;
    }
    quietIntervals += 1;
    if (openStreams === 0 && quietIntervals < idleIntervals) return;
    if (isAsked || session === undefined || session.destroyed) socket.destroy();
    else isAsked = session.ping(() => {});
  };
}

function peerOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress}:${remotePort}`;
}
