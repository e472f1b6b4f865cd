import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type ServerResponse,
  STATUS_CODES,
} from "node:http";
import type { Socket } from "node:net";
import { setTimeout as delay, setImmediate as nextTurn } from "node:timers/promises";
import { type Connection, type EngineOptions, maxHeaderBytes } from "./connection.ts";
import type { ConnectionUsage } from "./connection-usage.ts";
import { Http1Exchange, maxFields } from "./http1-exchange.ts";

/** Longer than the idle timeout of common load balancers, which then never lose a race. */
const keepAliveTimeoutMs = 75_000;

/** How long an idle connection is still served when it is to close, in milliseconds. */
const drainGraceMs = 100;

/** The most requests that may wait on one connection. */
const maxPipelined = 256;

/** The most bytes of bodies that may wait before one more request: Node.js reads them unasked. */
const maxWaitingBytes = 64 * 1024;

/** How long a client has to close a connection after its last reply, in milliseconds. */
const lingerMs = 1_000;

/** The status of what Node.js cannot take for a request, by its code; 400 of all else. */
const parseFaults: Record<string, number> = {
  HPE_HEADER_OVERFLOW: 431,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 413,
  ERR_HTTP_REQUEST_TIMEOUT: 408,
};

/** Speaks HTTP/1.1 on the connections that it is given. */
export function createHttp1({ requestTimeoutMs, serve }: EngineOptions) {
  const receivers = new Map<Socket, Receiver>();
  let isClosing = false;
  const dispatch: RequestListener = (req, res) => receivers.get(req.socket)?.receive(req, res);

  const server = createServer(
    {
      connectionsCheckingInterval: 1_000,
      requestTimeout: requestTimeoutMs,
      headersTimeout: requestTimeoutMs,
      keepAliveTimeout: keepAliveTimeoutMs,
      maxHeaderSize: maxHeaderBytes,
      // A refusal by Node.js itself would not be counted.
      requireHostHeader: false,
    },
    dispatch,
  );
  // This bounds what is kept of trailers, too.
  server.maxHeadersCount = maxFields + 1;
  // An expectation that is not known may be ignored (RFC 9110, 10.1.1).
  server.on("checkExpectation", dispatch);
  // The body is asked for when it is read, which is after the gate.
  server.on("checkContinue", dispatch);
  server.on("clientError", (error, socket) => receivers.get(socket as Socket)?.refuse(error));
  // It begins to check timeouts when it listens, which it does not do itself.
  server.emit("listening");

  function accept(socket: Socket, usage: ConnectionUsage): Connection {
    /**
     * Those that are open, in order; only the first is served, since replies leave one after the
     * other, and one that waits would time out. No Set: V8 keeps what has passed through a busy one
     * alive for long, which costs a sixth of the rate.
     */
    const exchanges: Http1Exchange[] = [];
    /** What was replied to before all of it had come, if it was the last request. */
    let unread: Http1Exchange | undefined;
    let isRetired = false;

    function startFirst(): void {
      const [exchange] = exchanges;
      // What follows the last reply of a connection is not processed (RFC 9112, 9.6).
      if (exchange === undefined || !socket.writable) return;
      if (exchange.fault === undefined) exchange.usage.waitForRoom(() => serve(exchange));
      else {
        exchange.usage.refuse();
        const [status, text] = exchange.fault;
        exchange.send(status, { "content-type": "text/plain" }, `${text}\n`);
      }
      if (usage.watches > 0 && exchanges.length > 1) socket.destroy();
    }

    /** Serves the next once the first has closed, and other connections have had their turn. */
    function advance(): void {
      const closed = exchanges.shift();
      unread = closed?.isComplete ? undefined : closed;
      // A shutdown ends when no call is in flight, and must not find one missing between two.
      if (isClosing || isRetired) startFirst();
      else if (exchanges.length > 0) setImmediate(startFirst);
    }

    /** An idle connection stays until its next request. */
    function retire(): void {
      isRetired = true;
      exchanges.at(-1)?.announceClose();
    }

    function receive(req: IncomingMessage, res: ServerResponse): void {
      if (socket.destroyed) {
        stopParsing(socket);
        return;
      }
      const exchange = new Http1Exchange(req, res, usage);
      // After what the exchange itself does when it closes.
      res.on("close", advance);
      // What follows a request to upgrade in one packet is not read.
      const isLast = isClosing || isRetired || exchange.fault || req.headers.upgrade !== undefined;
      if (isLast) exchange.announceClose();
      exchanges.push(exchange);
      const waitingBytes = exchanges.slice(1).reduce((sum, { bodyBytes }) => sum + bodyBytes, 0);
      const isCrowded = exchanges.length > 1 && usage.isCrowded;
      const isTooMuch = isCrowded || usage.open > maxPipelined || waitingBytes > maxWaitingBytes;
      // What comes after a watch could wait without end.
      if (isTooMuch || usage.watches > 0) exchange.destroy();
      if (exchanges.length === 1) startFirst();
    }

    /** Replies to what is no request, unless that could be taken for a reply to another one. */
    function refuse({ code = "" }: NodeJS.ErrnoException): void {
      if (socket.writableEnded) return;
      const awaited = exchanges.find(({ isEnded }) => !isEnded);
      if (!socket.writable || awaited?.isComplete || awaited?.headersSent) {
        socket.destroy();
        return;
      }
      const last = exchanges.at(-1) ?? unread;
      if (!last?.isEnded || last.isComplete) {
        const status = parseFaults[code] ?? 400;
        const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nconnection: close\r\n`;
        socket.write(`${head}content-length: 0\r\n\r\n`);
      }
      closeAfterLastByte(socket);
    }

    receivers.set(socket, { receive, refuse });
    // Node.js calls this after the last reply.
    socket.destroySoon = () => closeAfterLastByte(socket);
    socket.once("close", () => {
      receivers.delete(socket);
      // Node.js closes the responses too, but not after CONNECT, which takes the connection away.
      for (const exchange of [...exchanges]) exchange.abandon();
    });
    server.emit("connection", socket);
    return {
      retire,
      async drain() {
        retire();
        // A request may be on its way, and is then the last one.
        if (exchanges.length === 0) await delay(drainGraceMs);
        // Or the next of those that are here is about to be served.
        else await nextTurn();
        const last = exchanges.at(-1);
        if (last === undefined) socket.end();
        else last.onClose(() => last === exchanges.at(-1) && socket.end());
      },
    };
  }

  return {
    accept,
    /** Makes every reply the last one of its connection. */
    announceClose() {
      isClosing = true;
    },
    close: () => void server.close(),
  };
}

/** Takes what comes on one connection. */
interface Receiver {
  receive: RequestListener;
  refuse(error: NodeJS.ErrnoException): void;
}

/**
 * Closes a connection after its last bytes, once its client closes it too. What still came would
 * reset it, and those bytes could be lost (RFC 9112, 9.6).
 */
function closeAfterLastByte(socket: Socket): void {
  socket.end();
  const timer = setTimeout(() => socket.destroy(), lingerMs);
  socket.once("close", () => clearTimeout(timer));
}

/**
 * Drops the rest of what Node.js has read from a connection that was destroyed: 64 KiB can be 3,600
 * requests, which take 10 MB until the event loop has been through all other connections.
 */
function stopParsing(socket: Socket): void {
  // There is no public way. To return 2 calls a request an upgrade, and the parser leaves alone what
  // follows one.
  const { parser } = socket as { parser?: { onIncoming(): number } };
  if (parser) parser.onIncoming = () => 2;
}
