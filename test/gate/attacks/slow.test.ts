/** Clients that begin and do not go on, or do not read. */
import { describe, expect, inject, it } from "vitest";
import {
  clientPreface,
  closedWindows,
  type Fields,
  frameType,
  http2Frame,
} from "../../support/http2-frames.ts";
import { createRandom } from "../../support/random.ts";
import { messages, paths } from "../../support/raw-grpc.ts";
import { needs } from "../../support/tools.ts";
import { calls, http1, json } from "./requests.ts";
import { type Hostile, type Kind, type Protocol, startTarget } from "./target.ts";

/** The heads of a record and of a long ClientHello in it (RFC 8446, 5.1 and 4). */
const clientHello = Buffer.from("160301400001020144", "hex");

/** A connection on which a client stops half-way. */
interface HalfWay {
  readonly protocol: Protocol;
  readonly first: Uint8Array;
  /** What is sent every 200 ms, so that the connection does not look idle. */
  readonly drip?: string;
  /** Whether it begins before the handshake of TLS. */
  readonly isTcp?: boolean;
  readonly isRead?: boolean;
  /** In how many seconds the service closes it, if its request timeout is 10 s. */
  readonly seconds: number;
}

/** Whether nothing else is tested beside, as by `npm run attack`. */
const isAlone = process.env.ATTACK_MINUTES !== undefined;

/** Connections that are kept for longer than others. */
const idle: HalfWay[] = [
  { protocol: "http/1.1", first: http1("GET", "/healthz", {}), seconds: 80 },
  { protocol: "h2", first: clientPreface, seconds: 300 },
  {
    protocol: "h2",
    first: clientPreface,
    drip: String(http2Frame(frameType.ping, 0, 0, Buffer.alloc(8))),
    seconds: 300,
  },
];

/** Connections of a caller with these credentials that stop half-way. */
function halfWays(credentials: Fields): HalfWay[] {
  const post = (fields: Fields) =>
    http1("POST", "/v1/investors", { ...credentials, ...json, ...fields });
  const page = http1("POST", paths.list, { ...credentials, ...json }, '{"pageSize":1000}');
  const pages = calls(8, paths.list, credentials, messages.fullPage, true);
  const unread: HalfWay[] = [
    {
      protocol: "h2",
      first: Buffer.concat([clientPreface, closedWindows, ...pages]),
      seconds: 120,
    },
    // Without reading, only writing shows the end; empty lines are skipped between requests.
    {
      protocol: "http/1.1",
      first: Buffer.concat(Array(14).fill(page)),
      drip: "\r\n",
      isRead: false,
      seconds: 120,
    },
  ];
  const nothing = Buffer.alloc(0);
  const protocols: Protocol[] = ["h2", "http/1.1"];
  return [
    ...protocols.flatMap((protocol) => [
      { protocol, first: nothing, seconds: 10 },
      { protocol, first: nothing, isTcp: true, seconds: 10 },
      { protocol, first: clientHello, isTcp: true, seconds: 10 },
    ]),
    // From one byte on, of which in plain text three tell HTTP/2 from HTTP/1.1.
    ...[1, 2, 3, 10].map(
      (bytes): HalfWay => ({
        ...{ protocol: "h2", first: clientPreface.subarray(0, bytes), seconds: 10 },
      }),
    ),
    // Without the frame of settings, which has nine bytes.
    { protocol: "h2", first: clientPreface.subarray(0, -9), seconds: 10 },
    {
      protocol: "http/1.1",
      first: Buffer.from("GET / HTTP/1.1\r\n"),
      drip: "x: y\r\n",
      seconds: 10,
    },
    { protocol: "http/1.1", first: post({ "content-length": "60000" }), seconds: 12 },
    { protocol: "http/1.1", first: post({ "content-length": "60000" }), drip: " ", seconds: 12 },
    {
      protocol: "http/1.1",
      first: post({ "transfer-encoding": "chunked" }),
      drip: "1\r\n \r\n",
      seconds: 12,
    },
    ...(isAlone ? [...unread, ...idle] : []),
  ];
}

/** Opens a connection, and returns it if the service does not close it in time. */
async function findLate(hostile: Hostile, halfWay: HalfWay) {
  const { protocol, first, drip, isTcp = false, isRead = true, seconds } = halfWay;
  // The service looks once a second. Beside other tests, it is as late as the machine is busy.
  const lateMs = isAlone ? 500 * seconds + 5_000 : inject("waitMs");
  const end = performance.now() + 1_000 * seconds + lateMs;
  const { socket, tcp, closes } = await (isTcp ? hostile.openTcp : hostile.open)(protocol);
  if (!isRead) socket.pause();
  socket.write(first);
  while (!tcp.destroyed && performance.now() < end) {
    await closes(200);
    if (drip) socket.write(drip);
  }
  return tcp.destroyed
    ? []
    : [{ ...halfWay, kind: hostile.kind, first: first.toString().slice(0, 200) }];
}

describe("connections that stop half-way", needs("Linux"), () => {
  it("are closed in time, and nothing of them is kept", async () => {
    const kinds: Kind[] = ["plain", "TLS"];
    const late = kinds.map(async (kind) => {
      const target = await startTarget(kind, "10s");
      const initial = await target.holdings();
      const hostile = target.hostile(createRandom(0), false);
      const all = halfWays(hostile.credentials).map((halfWay) => findLate(hostile, halfWay));
      const found = (await Promise.all(all)).flat();
      await expect.poll(() => target.excess(initial)).toEqual([]);
      return found;
    });
    expect((await Promise.all(late)).flat()).toEqual([]);
  });
});
