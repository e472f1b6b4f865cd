import { constants, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";

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

/** What a guard asks of, and does to, the connection of its session. */
interface GuardedConnection {
  readonly idleSince: number | undefined;
  readonly mayHaveUnreadReply: boolean;
  readonly isBusy: boolean;
  retire(): void;
  destroy(): void;
}

/** Guards a session of HTTP/2 against clients that stall, are gone, or open and reset too many streams. */
export class SessionGuard {
  readonly #session: ServerHttp2Session;
  readonly #connection: GuardedConnection;
  readonly #timers: NodeJS.Timeout[];
  #newStreams = 0;

  constructor(session: ServerHttp2Session, connection: GuardedConnection) {
    this.#session = session;
    this.#connection = connection;
    let isLate = true;
    session.once("remoteSettings", () => {
      isLate = false;
    });
    // Node.js waits for its first settings, and for the last of its bytes to be read, without a limit.
    const checkEnds = () => {
      if (isLate) connection.destroy();
      isLate = session.destroyed && !connection.mayHaveUnreadReply;
    };
    this.#timers = [
      setInterval(checkEnds, sessionTimeoutMs).unref(),
      setInterval(() => this.#checkClient(), pingIntervalMs).unref(),
    ];
  }

  /**
   * Serves a new stream: at once or, after many in one turn of the event loop, when all was read, if
   * its client has not reset it by then. Ends a session with too many in a turn, since the memory of
   * streams that were reset is free only after it; Node.js limits resets only after all that it read.
   */
  paceStream(stream: ServerHttp2Stream, serve: () => void): void {
    if (this.#newStreams === 0) {
      setImmediate(() => {
        this.#newStreams = 0;
      });
    }
    this.#newStreams += 1;
    if (this.#newStreams > maxNewStreams) {
      this.#session.destroy(undefined, constants.NGHTTP2_ENHANCE_YOUR_CALM);
    } else if (this.#newStreams <= maxServedAtOnce) {
      serve();
    } else {
      setImmediate(() => {
        if (!stream.closed) serve();
      });
    }
  }

  /** Tells the client which stream was the last to be served; calls go on to their end. */
  close(): void {
    this.#session.close();
  }

  /** Ends its checks, once the connection has closed. */
  stop(): void {
    for (const timer of this.#timers) clearInterval(timer);
  }

  async #checkClient(): Promise<void> {
    const connection = this.#connection;
    const { idleSince = performance.now() } = connection;
    if (performance.now() - idleSince >= idleTimeoutMs) connection.retire();
    // Calls have limits of their own, and a ping waits behind what is sent of them.
    else if (!(await this.#isAnswered()) && !connection.isBusy) connection.destroy();
  }

  /** Whether the client answers a ping in time, or the session has ended. */
  async #isAnswered(): Promise<boolean> {
    const session = this.#session;
    if (session.destroyed) return true;
    const answered = new Promise<boolean>((resolve) => session.ping(() => resolve(true)));
    return Promise.race([answered, delay(pingTimeoutMs, false, { ref: false })]);
  }
}
