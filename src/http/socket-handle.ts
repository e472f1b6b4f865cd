import type { Socket } from "node:net";

/** What Node.js has below a socket. HTTP/2 undoes every public way to stop it from reading. */
export interface Handle {
  /** False if HTTP/1.1 has stopped reading. */
  readonly reading: boolean;
  readonly bytesRead: number;
  /** Bytes that are yet to be written. */
  readonly writeQueueSize: number;
  readStop(): number;
  readStart(): number;
  /** Returns 0 as long as the system has the connection. */
  getpeername(out: object): number;
}

/** The handle of a socket, unless that has closed. */
export function handleOf(socket: Socket | undefined): Handle | undefined {
  return (socket as { _handle?: Handle } | undefined)?._handle;
}
