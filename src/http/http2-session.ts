import { constants, type ServerHttp2Session } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { createTurns } from "../event-loop.ts";
import type { Connection, EndReason } from "./connection.ts";

/** How long a session may take to send its settings and, once it has ended, to close its socket, in milliseconds. */
const sessionTimeoutMs = 10_000;

/** How often to ask over HTTP/2 whether the client is still there, and its timeout, in milliseconds. */
const pingIntervalMs = 60_000;
const pingTimeoutMs = 30_000;

/** The time without calls after which a connection of HTTP/2 is retired, in milliseconds. */
const idleTimeoutMs = 5 * 60_000;

/** The most streams that a connection of HTTP/2 may have at once; clients presume no fewer. */
export const maxStreams = 100;

/** How many new requests are served in a turn of the event loop, in all and of a session; the others wait. */
const maxServedAtOnce = 64;
const maxServedOfSession = 32;

/**
 * The most new streams in a turn, with those that were reset in it: of a session, and of all together.
 * A session that has more ends, once all together have more.
 */
const maxNewStreams = 192;
const maxNewStreamsOfAll = 2_048;

/** Guards a connection of HTTP/2 against clients that stall, or are gone. */
export function guardSession(session: ServerHttp2Session, connection: Connection): void {
  let late: EndReason | undefined = "no_settings";
  session.once("remoteSettings", () => {
    late = undefined;
  });
  // Node.js waits for its first settings, and for the last of its bytes to be read, without a limit.
  const checkEnds = () => {
    if (late) connection.end(late);
    const isOpen = session.destroyed && !connection.mayHaveUnreadReply;
    late = isOpen ? "not_closed" : undefined;
  };
  const checkClient = async () => {
    const { idleSince = performance.now() } = connection;
    if (performance.now() - idleSince >= idleTimeoutMs) connection.retire();
    // Calls have limits of their own, and a ping waits behind what is sent of them.
    else if (!(await isAnswered(session)) && !connection.isBusy) connection.end("no_ping_reply");
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
 * Creates what paces the requests to a server: after many in one turn of the event loop, others wait
 * for the next. New streams that were reset are counted, too, and too many end their session: Node.js
 * frees the memory of streams that were reset, and limits resets, only after the turn. After a long turn
 * a single good client may have many, so a session is ended only while all of them have too many.
 */
export function createPaces() {
  const takeTurn = createTurns(maxServedAtOnce);
  let ofAll = 0;
  let waiting = 0;
  const endTurn = () => {
    ofAll = 0;
  };

  /** Serves a request in this turn, or in a later one if it is not over by then. */
  function pace(own: number, isOver: () => boolean, serve: () => void): void {
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
  }

  return {
    /** Paces a request of HTTP/1.1. */
    paceRequest: (isOver: () => boolean, serve: () => void) => pace(1, isOver, serve),
    /** Paces the new streams of a session. */
    paceSession(session: ServerHttp2Session, connection: Connection): void {
      let own = 0;
      const endTurn = () => {
        own = 0;
      };
      connection.pace = (stream, serve) => {
        if (own === 0) setImmediate(endTurn);
        own += 1;
        if (own > maxNewStreams && ofAll > maxNewStreamsOfAll) {
          if (!session.destroyed) connection.report("too_many_streams");
          session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM);
        } else {
          pace(own, () => stream.closed, serve);
        }
      };
    },
  };
}
