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
import { type Hostile, isAlone, type Kind, type Protocol, startTarget } from "./target.ts";

/** The heads of a record and of a long ClientHello in it (RFC 8446, 5.1 and 4). */
const clientHello = Buffer.from("160301400001020144", "hex");
const nothing = Buffer.alloc(0);
const ping = String(http2Frame(frameType.ping, 0, 0, Buffer.alloc(8)));

/** On a connection, what is sent first, and then every 200 ms so that it does not look idle. */
type HalfWay = [on: Protocol | "tcp", first: Uint8Array, drip?: string];

/** Where a client with these credentials stops, by the seconds until the service closes, of which a call has 10. */
function halfWays(credentials: Fields): Record<number, HalfWay[]> {
  const post = (fields: Fields) =>
    http1("POST", "/v1/investors", { ...credentials, ...json, ...fields });
  const page = http1("POST", paths.list, { ...credentials, ...json }, '{"pageSize":1000}');
  const pages = calls(8, paths.list, credentials, messages.fullPage, true);
  const length = { "content-length": "60000" };
  // From one byte on, of which in plain text three tell HTTP/2 from HTTP/1.1. The settings have nine.
  const prefaces = [1, 2, 3, 10, -9].map((end) => clientPreface.subarray(0, end));
  const busy: Record<number, HalfWay[]> = {
    10: [
      ["tcp", nothing],
      ["tcp", clientHello],
      ["h2", nothing],
      ["http/1.1", nothing],
      ...prefaces.map((first): HalfWay => ["h2", first]),
      ["http/1.1", Buffer.from("GET / HTTP/1.1\r\n"), "x: y\r\n"],
    ],
    12: [
      ["http/1.1", post(length)],
      ["http/1.1", post(length), " "],
      ["http/1.1", post({ "transfer-encoding": "chunked" }), "1\r\n \r\n"],
    ],
  };
  const idle: Record<number, HalfWay[]> = {
    80: [["http/1.1", http1("GET", "/healthz", {})]],
    120: [
      ["h2", Buffer.concat([clientPreface, closedWindows, ...pages])],
      // Without reading, only writing shows the end; empty lines are skipped between requests.
      ["http/1.1", Buffer.concat(Array(14).fill(page)), "\r\n"],
    ],
    300: [
      ["h2", clientPreface],
      ["h2", clientPreface, ping],
    ],
  };
  return isAlone ? { ...busy, ...idle } : busy;
}

/** Opens a connection, and returns it if the service does not close it in time. */
async function findLate({ open }: Hostile, seconds: number, halfWay: HalfWay) {
  const [on, first, drip] = halfWay;
  // The service looks once a second. Beside other tests, it is as late as the machine is busy.
  const lateMs = isAlone ? 500 * seconds + 5_000 : inject("waitMs");
  const end = performance.now() + 1_000 * seconds + lateMs;
  const { socket, tcp, closes } = await open(on);
  if (drip === "\r\n") socket.pause();
  socket.write(first);
  while (!tcp.destroyed && performance.now() < end) {
    await closes(200);
    if (drip) socket.write(drip);
  }
  return tcp.destroyed ? [] : [{ seconds, on, drip, first: String(first).slice(0, 200) }];
}

describe("connections that stop half-way", needs("Linux"), () => {
  it.each<Kind>(["plain", "TLS"])("are closed in time, and nothing is kept: %s", async (kind) => {
    const target = await startTarget(kind, "10s");
    const initial = await target.holdings();
    const hostile = target.hostile(createRandom(0), false);
    const all = Object.entries(halfWays(hostile.credentials)).flatMap(([seconds, each]) =>
      each.map((halfWay) => findLate(hostile, Number(seconds), halfWay)),
    );
    expect((await Promise.all(all)).flat()).toEqual([]);
    await expect.poll(() => target.excess(initial)).toEqual([]);
  });
});
