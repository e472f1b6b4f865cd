import type { ServerHttp2Session } from "node:http2";
import { limits } from "../limits.ts";
import { createTurns } from "../turns.ts";
import type { Connection } from "./connection.ts";

/** How many new requests to serve per turn of the event loop, in all and per session; the others wait. */
const maxServedAtOnce = 64;
const maxServedOfSession = 32;

/**
 * Paces the requests to a server: serves each in this turn of the event loop or, after many in the
 * turn, in a later one. None is served that is over by then, such as a stream that its first packet
 * resets. New streams that were reset count too, and too many of them end their session: Node.js
 * frees their memory, and limits resets, only after the turn. After a long turn a well-behaved
 * client may also have many, so sessions are ended only while the total is too high.
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
      if (!isOver()) serve();
      return;
    }
    waiting += 1;
    void takeTurn(isOver).then(() => {
      waiting -= 1;
      if (!isOver()) serve();
    });
  };
}
