import { constants, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import type { Connection } from "./connection.ts";

/** How long a session may take to send its settings and, once it has ended, to close its socket, in milliseconds. */
const sessionTimeoutMs = 10_000;

/** How often to ask over HTTP/2 whether the client is still there, and its timeout, in milliseconds. */
const pingIntervalMs = 60_000;
const pingTimeoutMs = 30_000;

/** The time without calls after which a connection of HTTP/2 is retired, in milliseconds. */
const idleTimeoutMs = 5 * 60_000;

/** The most streams that a connection of HTTP/2 may have at once; clients presume no fewer. */
export const maxStreams = 100;

/** How many new streams of a turn of the event loop are served in that turn; the others wait for the next. */
const maxServedAtOnce = 32;

/** The most new streams in a turn, with those that were reset in it; one more ends the session. */
const maxNewStreams = 192;

/** Guards a connection of HTTP/2 against clients that stall, or are gone. */
export function guardSession(session: ServerHttp2Session, connection: Connection): void {
  let isLate = true;
  session.once("remoteSettings", () => {
    isLate = false;
  });
  // Node.js waits for its first settings, and for the last of its bytes to be read, without a limit.
  const checkEnds = () => {
    if (isLate) connection.destroy();
    isLate = session.destroyed && !connection.mayHaveUnreadReply;
  };
  const checkClient = async () => {
    const { idleSince = performance.now() } = connection;
    if (performance.now() - idleSince >= idleTimeoutMs) connection.retire();
    // Calls have limits of their own, and a ping waits behind what is sent of them.
    else if (!(await isAnswered(session)) && !connection.isBusy) connection.destroy();
  };
  const timers = [
    setInterval(checkEnds, sessionTimeoutMs).unref(),
    setInterval(checkClient, pingIntervalMs).unref(),
  ];
  // The session itself can have ended long before.
  session.socket.once("close", () => timers.forEach(clearInterval));
}

/** Whether the client of a session answers a ping in time, or the session has ended. */
async function isAnswered(session: ServerHttp2Session): Promise<boolean> {
  if (session.destroyed) return true;
  const answered = new Promise<boolean>((resolve) => session.ping(() => resolve(true)));
  return Promise.race([answered, delay(pingTimeoutMs, false, { ref: false })]);
}

/**
 * Creates what serves the new streams of a session. After many in one turn of the event loop, the
 * others wait for its end, and are not served if the client has reset them by then. Too many end the
 * session: Node.js frees the memory of streams that were reset, and limits resets, only after the turn.
 */
export function createPace(session: ServerHttp2Session) {
  let newStreams = 0;
  const endTurn = () => {
    newStreams = 0;
  };
  return (stream: ServerHttp2Stream, serve: () => void): void => {
    if (newStreams === 0) setImmediate(endTurn);
    newStreams += 1;
    if (newStreams > maxNewStreams) {
      session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM);
    } else if (newStreams <= maxServedAtOnce) {
      serve();
    } else {
      setImmediate(() => {
        if (!stream.closed) serve();
      });
    }
  };
}
