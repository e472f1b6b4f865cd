/** One caller who takes all there is, beside the others. */
import type { ClientHttp2Session } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import { frame } from "../support/raw-grpc.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { pour } from "./pour.ts";
import { grpcHeaders, http1, plainJson, rpc, withTrailers } from "./requests.ts";
import type { Target } from "./target.ts";

/** The longest text that a field takes, in 1 KiB. */
const long = "\u{1F600}".repeat(256);

/** Stores so much that a page of it takes a megabyte. */
async function fill(target: Target): Promise<void> {
  const record = JSON.parse(plainJson);
  for (const name of ["firstName", "lastName", "addressLine1", "addressLine2", "city", "state"])
    record[name] = long;
  const body = JSON.stringify(record);
  const headers = { ...target.greedy, "content-type": "application/json" };
  const store = async () => {
    for (let i = 0; i < 25; i += 1) {
      const { status } = await target.request("/v1/investors", { method: "POST", headers, body });
      expect(status).toBe(200);
    }
  };
  await Promise.all(Array.from({ length: 8 }, store));
}

/** Enough for all slots where one caller gets less, and not for all where nobody says who calls. */
const sessionsOf = ({ kind }: Target) => (kind === "TLS" ? 9 : 6);

const watch = "/grpc.health.v1.Health/Watch";
const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

const wholePage = frame(Buffer.from([8, 0xe8, 7]));

const attacks: Attack[] = [
  {
    name: "a thousand pages by gRPC that nobody reads",
    async run(target) {
      await fill(target);
      const head = grpcHeaders(`${rpc}/ListInvestors`, target.greedy);
      const sessions = sessionsOf(target);
      for (let i = 0; i < sessions; i += 1) {
        const session = await target.session("grpc", { settings: { initialWindowSize: 0 } });
        for (let n = 0; n < 128; n += 1) {
          session
            .request(head)
            .on("error", () => {})
            .end(wholePage);
        }
      }
      await delay(2_500);
      return sessions * 128;
    },
  },
  {
    name: "pages by HTTP/1.1 that nobody reads",
    async run(target) {
      await fill(target);
      const head = { ...target.greedy, "content-type": "application/json" };
      const one = http1("POST", `${rpc}/ListInvestors`, head, '{"pageSize":1000}');
      const count = sessionsOf(target) * 6;
      for (let i = 0; i < count; i += 1) {
        const { socket } = await target.open("http", { isKnown: true });
        socket.pause();
        socket.write(Buffer.concat(Array(20).fill(one)));
      }
      await delay(2_500);
      return count * 20;
    },
  },
  {
    name: "bodies of thousands of members whose last bytes come at once",
    async run(target) {
      const members = Array.from({ length: 6_000 }, (_, i) => `"${i}":""`);
      const body = `{${members.join(",")}}`;
      const fields = { ...target.greedy, "content-type": "application/json" };
      const bytes = http1("POST", "/v1/investors", fields, body);
      const connections = await Promise.all(
        // When memory is short, some make room for others.
        Array.from({ length: 300 }, () => target.open("http", { isKnown: true, mayFail: true })),
      );
      for (let i = 0; i < 2; i += 1) {
        for (const { socket } of connections) socket.write(bytes.subarray(0, -1));
        await delay(2_000);
        for (const { socket } of connections) socket.write(bytes.subarray(-1));
        await delay(1_500);
      }
      return 2 * connections.length;
    },
  },
  {
    name: "idle connections after pipelines of many headers",
    on: "TLS",
    async run(target) {
      const count = 100;
      const requests = 100;
      const head = { ...target.greedy, "content-type": "application/json" };
      // What follows a create is parsed before that is durable.
      const first = http1("POST", "/v1/investors", head, plainJson);
      const fields = Array.from({ length: 120 }, (_, i) => [`x-${i}`, "x"]);
      const probe = http1("GET", "/healthz", Object.fromEntries(fields));
      const pipeline = Buffer.concat([first, ...Array(requests - 1).fill(probe)]);
      let left = count;
      const come = async () => {
        while (left > 0) {
          left -= 1;
          const { socket, received } = await target.open("http", { isKnown: true });
          socket.write(pipeline);
          const replies = () => received().split("HTTP/1.1 200 OK").length - 1;
          await expect.poll(replies, { timeout: 10_000, interval: 5 }).toBe(requests);
        }
      };
      await Promise.all([come(), come()]);
      return count * requests;
    },
  },
  {
    name: "the whole list, eight times, slowly",
    on: "TLS",
    async run(target) {
      const session = await target.session("http", { settings: { initialWindowSize: 0 } });
      for (let i = 0; i < 8; i += 1) {
        session.request({ ":path": "/v1/investors", ...target.greedy }).on("error", () => {});
      }
      await delay(500);
      const token = await target.issuer?.sign({ scope: "investors:read" });
      const headers = { authorization: `Bearer ${token}` };
      const { socket, received } = await target.open("http", { isKnown: true });
      socket.write(http1("GET", "/v1/investors", headers));
      await expect.poll(() => received().slice(0, 12), { timeout: 5_000 }).toBe("HTTP/1.1 200");
      return 9;
    },
  },
  {
    name: "bodies that never end, one for each slot",
    on: "TLS",
    async run(target) {
      const head = grpcHeaders(`${rpc}/CreateInvestor`, target.greedy);
      for (let i = 0; i < 9; i += 1) {
        const session = await target.session("grpc");
        for (let n = 0; n < 128; n += 1) {
          session
            .request(head)
            .on("error", () => {})
            .write(Buffer.from([0, 0]));
        }
      }
      await delay(1_500);
      return 9 * 128;
    },
  },
  {
    name: "pages whose requests have a thousand trailers",
    isAlone: true,
    async run(target) {
      await fill(target);
      return pour(target, { bytes: withTrailers("/v1/investors?pageSize=1000", target.greedy) });
    },
  },
  {
    name: "queries of thousands of parameters",
    run(target) {
      const names = Array.from({ length: 4_000 }, (_, i) => i.toString(36)).join("&");
      return pour(target, { bytes: http1("GET", `/v1/investors/x?${names}`, target.greedy) });
    },
  },
  {
    name: "more connections than there may be",
    async run(target) {
      const count = 1_300;
      for (let i = 0; i < count; i += 50) {
        const some = Array.from({ length: 50 }, (_, n) =>
          target.openTcp(n % 2 === 0 ? "grpc" : "http"),
        );
        await Promise.all(some);
      }
      await delay(500);
      const { descriptors = 0 } = target.holdings();
      expect(descriptors, "descriptors").toBeLessThan(1_024 + 100);
      return count;
    },
  },
  {
    name: "more Watch streams than there may be",
    async run(target) {
      const open = await openStreams(target, watch, frame(Buffer.alloc(0)), 140, 12);
      for (const count of open) expect(count, "streams of a connection").toBeLessThanOrEqual(8);
      const total = open.reduce((sum, each) => sum + each, 0);
      expect(total, "streams in all").toBeGreaterThanOrEqual(8);
      expect(total, "streams in all").toBeLessThanOrEqual(1_024);
      return 140 * 12;
    },
  },
  {
    name: "reflection streams with long headers",
    async run(target) {
      const fields = { "x-long": "x".repeat(12_000) };
      const open = await openStreams(
        target,
        reflection,
        frame(Buffer.from([0x3a, 0])),
        20,
        128,
        fields,
      );
      for (const count of open) expect(count, "streams of a connection").toBeLessThanOrEqual(8);
      // When memory is short, connections that keep so much are closed.
      const isWhole = open.length === 20;
      if (isWhole) expect(Math.max(...open), "streams of a connection").toBeGreaterThanOrEqual(8);
      return 20 * 128;
    },
  },
  {
    name: "thousands of Watch streams",
    async run(target) {
      await openStreams(target, watch, frame(Buffer.alloc(0)), 50, 128);
      return 50 * 128;
    },
  },
];

/** What takes more than a minute, and is done where there is time. */
const longAttacks: Attack[] = [
  {
    name: "reflection streams that go on for more than a minute",
    async run(target) {
      const session = await target.session("grpc");
      const streams = Array.from({ length: 3 }, () => {
        const stream = session.request(grpcHeaders(reflection)).on("error", () => {});
        const timer = setInterval(() => stream.write(frame(Buffer.from([0x3a, 0]))), 5_000);
        stream.once("close", () => clearInterval(timer));
        return stream.resume();
      });
      await delay(75_000);
      expect(streams.filter(({ closed }) => !closed).length, "streams that are open").toBe(0);
      return streams.length;
    },
  },
];

/**
 * Opens streams on sessions and leaves them open; tells how many of each session were not refused, of
 * sessions that are still open.
 */
async function openStreams(
  target: Target,
  path: string,
  body: Buffer,
  sessions: number,
  streams: number,
  fields: Record<string, string> = {},
): Promise<number[]> {
  const open: number[] = [];
  const opened: ClientHttp2Session[] = [];
  for (let i = 0; i < sessions; i += 1) {
    const session = await target.session("grpc");
    opened.push(session);
    open.push(0);
    for (let n = 0; n < streams; n += 1) {
      const stream = session.request(grpcHeaders(path, fields)).on("error", () => {});
      let isCounted = false;
      const count = (difference: number) => {
        open[i] = (open[i] ?? 0) + difference;
      };
      // Whoever is refused gets no message.
      stream.once("data", () => {
        isCounted = true;
        count(1);
      });
      stream.once("close", () => isCounted && count(-1));
      // A watcher has no more to say, whoever reflects can ask again.
      if (path === watch) stream.end(body);
      else stream.write(body);
    }
  }
  await delay(4_000);
  return open.filter((_, i) => opened[i]?.destroyed === false);
}

const isLong = process.env.ATTACK_MINUTES !== undefined;
describeAttacks("greedy callers", [...attacks, ...(isLong ? longAttacks : [])]);
