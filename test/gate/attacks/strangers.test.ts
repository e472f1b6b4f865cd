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
import { isAlone, type Kind, type Protocol, startTarget } from "./target.ts";

const execute = promisify(execFile);

const maxMemoryMb = 650;
const maxHealthMs = 100;
const creates = 20;

/** 15 KB of headers, as the service counts them (RFC 9113, 6.5.2). */
const large = Object.fromEntries(Array.from({ length: 110 }, (_, i) => [`x-${i}`, "x".repeat(99)]));

/** What is sent on each of many connections. */
type Flood = [name: string, connections: number, kind: Kind, protocol: Protocol, bytes: Buffer];

/** Calls on streams that take no data and do not end their requests. */
function streams(path: string, type: string, fields: Fields, body: Uint8Array, count = 100) {
  const all = calls(count, path, fieldsOf(path, fields, type), body);
  return Buffer.concat([clientPreface, closedWindows, ...all]);
}

const nothing = Buffer.alloc(0);
const check = streams(paths.check, "application/grpc", {}, messages.fullPage.subarray(0, -1));
const reflect = streams(paths.reflect, "application/grpc", {}, messages.listServices, 1);
const pipelined = Buffer.concat(Array(16).fill(http1("GET", "/openapi.json", large)));
const documents = streams("/openapi.json", "", { ":method": "GET" }, nothing);

/** Calls with 15 KB of headers or few, on so many connections. */
const sizes: [connections: number, fields: Fields][] = [[220, large]];
if (isAlone) sizes.push([1_000, large], [400, {}], [1_000, {}]);
const kinds: Kind[] = isAlone ? ["plain", "TLS"] : ["TLS"];

const floods: Flood[] = [
  ...(
    [
      ["gRPC", "plain", paths.create, "application/grpc"],
      ["REST", "TLS", "/v1/investors", "application/json"],
    ] as const
  ).flatMap(([name, kind, path, type]) =>
    sizes.map(([connections, fields]): Flood => {
      const about = `calls by ${name} with ${Object.keys(fields).length} fields`;
      return [about, connections, kind, "h2", streams(path, type, fields, nothing)];
    }),
  ),
  ...kinds.flatMap((kind): Flood[] => [
    [`half-sent Checks, ${kind},`, 1_024, kind, "h2", check],
    [`pipelined documents, ${kind},`, 1_024, kind, "http/1.1", pipelined],
    [`reflection, ${kind},`, 1_024, kind, "h2", reflect],
  ]),
  ["documents over HTTP/2", 1_024, "TLS", "h2", documents],
];

it.each(floods)(
  "%s that are not read, on %i connections",
  { ...needs("curl"), timeout: 10 * inject("testMs") },
  async (name, connections, kind, protocol, bytes) => {
    const target = await startTarget(kind);
    const { httpUrl, token } = target.addresses;
    const hostile = target.hostile(createRandom(0), true);
    // From another process, since this one is busy.
    const curl = async (format: string, ...args: string[]) => {
      const { stdout } = await execute("curl", ["-sk", "-o", "/dev/null", "-w", format, ...args]);
      return Number(stdout);
    };
    const headers = ["content-type: application/json", `authorization: Bearer ${token}`];
    const create = [
      ...headers.flatMap((header) => ["-H", header]),
      ...["-d", JSON.stringify(institution), `${httpUrl}/v1/investors`],
    ];
    const flood = Array.from({ length: connections }, async () => {
      const { socket } = await hostile.open(protocol);
      socket.pause().write(bytes);
    });
    const statuses: number[] = [];
    const createAll = async () => {
      while (statuses.length < creates) statuses.push(await curl("%{http_code}", ...create));
    };
    await Promise.race([Promise.all([...flood, createAll()]), target.throwOnceEnded]);
    console.log(`MB at the peak: ${target.peakMb()}`);
    target.closeAll();
    expect(statuses).toEqual(Array(creates).fill(200));
    expect(target.peakMb(), "MB at the peak").toBeLessThan(maxMemoryMb);
    const healthMs = async () => 1_000 * (await curl("%{time_total}", `${httpUrl}/healthz`));
    await expect.poll(healthMs).toBeLessThan(maxHealthMs);
    // Over HTTP/1.1 it depends on how many the system passes on at once.
    if (protocol === "http/1.1" || name.startsWith("reflection")) return;
    const metrics = await target.readMetrics();
    expect(metrics).toMatch(/connections_closed_total{reason="unadmitted_requests"} [1-9]/);
  },
);
