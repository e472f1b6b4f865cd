import type { ServerHttp2Session } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { limits } from "../calls/limits.ts";
import { createTurns } from "../event-loop.ts";
import type { Connection, EndReason } from "./connection.ts";

/** Interval of HTTP/2 pings, and the deadline of their replies, in milliseconds. */
const pingIntervalMs = 60_000;
const pingTimeoutMs = 30_000;

/** How many new requests to serve per turn of the event loop, in all and per session; the others wait. */
const maxServedAtOnce = 64;
const maxServedOfSession = 32;

/** Guards an HTTP/2 connection against clients that stall, or are gone. */
export function guardSession(session: ServerHttp2Session, connection: Connection): void {
  let late: EndReason | undefined = "no_settings";
  session.once("remoteSettings", () => {
    late = undefined;
  });
  // Node.js waits without limit for the first settings, and for the client to read the last bytes.
  const checkEnds = () => {
    if (late) connection.end(late);
    const isOpen = session.destroyed && !connection.mayHaveUnreadReply;
    late = isOpen ? "not_closed" : undefined;
  };
  const checkClient = async () => {
    const { idleSince = performance.now() } = connection;
    if (performance.now() - idleSince >= limits.idleMs) connection.retire();
    // Calls have their own deadlines, and a ping queues behind their replies.
    else if (!(await isAnswered(session)) && !connection.isBusy) connection.end("no_ping_reply");
  };
  const timers = [
    // Also for how long the socket may take to close after the session.
    setInterval(checkEnds, limits.beginMs).unref(),
    setInterval(checkClient, pingIntervalMs).unref(),
  ];
  // The session can end long before its socket closes.
  session.socket.once("close", () => timers.forEach(clearInterval));
}

/** Whether the client answers a ping in time, or the session has ended. */
async function isAnswered(session: ServerHttp2Session): Promise<boolean> {
  if (session.destroyed) return true;
  const answered = new Promise<boolean>((resolve) => session.ping(() => resolve(true)));
  return Promise.race([answered, delay(pingTimeoutMs, false, { ref: false })]);
}

/**
 * Paces the requests to a server: serves each in this turn of the event loop or, after many in the
 * turn, in a later one if it is still alive then. New streams that were reset count too, and too
 * many of them end their session: Node.js frees their memory, and limits resets, only after the
 * turn. After a long turn a well-behaved client may also have many, so sessions are ended only
 * while the total is too high.
 */
export function createPace() {
  const takeTurn = createTurns(maxServedAtOnce);
  const ofSession = new Map<ServerHttp2Session, number>();
  let ofAll = 0;
  let waiting = 0;
  const endTurn = () => {
    ofSession.clear();
    ofAll = 0;
  };

  return (connection: Connection, isOver: () => boolean, serve: () => void): void => {
    const { session } = connection;
    let own = 1;
    if (session) {
      own += ofSession.get(session) ?? 0;
      ofSession.set(session, own);
      if (own > limits.newStreams && ofAll > limits.newStreamsOfAll) {
        connection.end("too_many_streams");
        return;
      }
    }
    if (ofAll === 0) setImmediate(endTurn);
    ofAll += 1;
    if (waiting === 0 && ofAll <= maxServedAtOnce && own <= maxServedOfSession) {
      serve();
      return;
    }
    waiting += 1;
    void takeTurn(isOver).then(() => {
      waiting -= 1;
      if (!isOver()) serve();
    });
  };
}
