import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";

/** What is known of the connection by which a call came. */
export interface Connection {
  /** The address and port of the other side. */
  readonly peer: string;
  /** Who the client is by its certificate; absent if it showed none. */
  readonly certificate?: {
    readonly subject: string;
    /** Whether an authority of this service has signed it. */
    readonly isTrusted: boolean;
  };
}

/** Makes a function that describes connections, and looks at each of them only once. */
export function createConnectionLookup(): (socket: Socket) => Connection {
  const known = new WeakMap<Socket, Connection>();
  return (socket) => {
    const connection = known.get(socket) ?? describe(socket);
    known.set(socket, connection);
    return connection;
  };
}

function describe(socket: Socket): Connection {
  const peer = `${socket.remoteAddress}:${socket.remotePort}`;
  const { authorized, getPeerX509Certificate } = socket as Partial<TLSSocket>;
  const subject = getPeerX509Certificate?.call(socket)?.subject;
  if (subject === undefined) return { peer };
  return { peer, certificate: { subject, isTrusted: authorized === true } };
}
