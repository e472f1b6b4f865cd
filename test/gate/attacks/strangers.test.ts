/** Clients without credentials that read no reply, on as many connections and streams as they like. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, inject, it } from "vitest";
import { clientPreface, closedWindows, type Fields, fieldsOf } from "../../support/http2-frames.ts";
import { createRandom } from "../../support/random.ts";
import { messages, paths } from "../../support/raw-grpc.ts";
import { institution } from "../../support/records.ts";
import { needs } from "../../support/tools.ts";
import { calls, http1 } from "./requests.ts";
import { type Kind, type Protocol, startTarget } from "./target.ts";

const execute = promisify(execFile);

/** Whether nothing else is tested beside, as by `npm run attack`. */
const isAlone = process.env.ATTACK_MINUTES !== undefined;

const maxMemoryMb = 650;
const maxHealthMs = 100;
const creates = 20;

/** 15 KB of headers, as the service counts them (RFC 9113, 6.5.2). */
const large = Object.fromEntries(Array.from({ length: 110 }, (_, i) => [`x-${i}`, "x".repeat(99)]));

/** What each of many connections sends. */
interface Flood {
  readonly kind: Kind;
  readonly protocol: Protocol;
  readonly bytes: Buffer;
}

/** Calls on a hundred streams, none of which takes data or ends its request. */
function streams(kind: Kind, path: string, type: string, fields: Fields, body: Uint8Array): Flood {
  const all = calls(100, path, fieldsOf(path, fields, type), body);
  const bytes = Buffer.concat([clientPreface, closedWindows, ...all]);
  return { kind, protocol: "h2", bytes };
}

/** A call on one stream, whose request does not end. */
function stream(kind: Kind, path: string, body: Uint8Array): Flood {
  const bytes = Buffer.concat([clientPreface, ...calls(1, path, {}, body)]);
  return { kind, protocol: "h2", bytes };
}

const nothing = Buffer.alloc(0);
const half = messages.fullPage.subarray(0, -1);
const get = { ":method": "GET" };
const pipelined = Buffer.concat(Array(16).fill(http1("GET", "/openapi.json", large)));

const floods: [name: string, connections: number, flood: Flood][] = [
  ...(
    [
      ["gRPC", "plain", paths.create, "application/grpc"],
      ["gRPC-Web", "plain", paths.create, "application/grpc-web+proto"],
      ["Connect", "plain", paths.create, "application/proto"],
      ["REST", "TLS", "/v1/investors", "application/json"],
    ] as const
  ).flatMap(([name, kind, path, type]): typeof floods => {
    const few = streams(kind, path, type, {}, nothing);
    const much = streams(kind, path, type, large, nothing);
    return [
      [`calls by ${name} with 15 KB of headers`, 220, much],
      ...(isAlone
        ? ([
            [`calls by ${name} with 15 KB of headers`, 1_000, much],
            [`calls by ${name}`, 400, few],
            [`calls by ${name}`, 1_000, few],
          ] satisfies typeof floods)
        : []),
    ];
  }),
  ...(isAlone ? (["plain", "TLS"] as const) : (["TLS"] as const)).flatMap((kind): typeof floods => [
    [`half-sent Checks, ${kind},`, 1_024, streams(kind, paths.check, "application/grpc", {}, half)],
    [`pipelined pages, ${kind},`, 1_024, { kind, protocol: "http/1.1", bytes: pipelined }],
    [`reflection, ${kind},`, 1_024, stream(kind, paths.reflect, messages.listServices)],
    [`watches, ${kind},`, 1_024, stream(kind, paths.watch, messages.empty)],
  ]),
  ["pages over HTTP/2", 1_024, streams("TLS", "/openapi.json", "", get, nothing)],
];

it.each(floods)(
  "%s that are not read, on %i connections",
  { ...needs("Linux", "curl"), timeout: 10 * inject("testMs") },
  async (name, connections, { kind, protocol, bytes }) => {
    const target = await startTarget(kind);
    const { httpUrl, token } = target.addresses;
    const hostile = target.hostile(createRandom(0), true);
    // From another process, since this one is busy.
    const curl = async (format: string, ...args: string[]) => {
      const { stdout } = await execute("curl", ["-sk", "-o", "/dev/null", "-w", format, ...args]);
      return Number(stdout);
    };
    const create = () =>
      curl(
        "%{http_code}",
        ...["-H", "content-type: application/json", "-H", `authorization: Bearer ${token}`],
        ...["-d", JSON.stringify(institution), `${httpUrl}/v1/investors`],
      );
    const flood = Promise.all(
      Array.from({ length: connections }, async () => {
        const { socket } = await hostile.open(protocol);
        socket.pause().write(bytes);
      }),
    );
    const statuses: number[] = [];
    const createAll = async () => {
      while (statuses.length < creates) statuses.push(await create());
    };
    await Promise.race([Promise.all([flood, createAll()]), target.throwOnceEnded]);
    console.log(`MB at the peak: ${target.peakMb()}`);
    target.closeAll();
    expect(statuses).toEqual(Array(creates).fill(200));
    expect(target.peakMb(), "MB at the peak").toBeLessThan(maxMemoryMb);
    const healthMs = async () => 1_000 * (await curl("%{time_total}", `${httpUrl}/healthz`));
    await expect.poll(healthMs).toBeLessThan(maxHealthMs);
    // Over HTTP/1.1 it depends on how many the system passes on at once.
    if (protocol === "http/1.1" || /reflection|watches/.test(name)) return;
    const headers = { authorization: `Bearer ${token}` };
    const metrics = await (await fetch(`${httpUrl}/metrics`, { headers })).text();
    expect(metrics).toMatch(/connections_closed_total{reason="unadmitted_requests"} [1-9]/);
  },
);
