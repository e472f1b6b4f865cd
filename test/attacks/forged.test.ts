/** Requests that pretend to be others: of other pages, under other names, within other requests. */
import { setTimeout as delay } from "node:timers/promises";
import { expect } from "vitest";
import { frame } from "../support/raw-grpc.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { grpcHeaders, http1, jsonMessages, messages, plainJson, rpc } from "./requests.ts";
import type { Target } from "./target.ts";

type Fields = Record<string, string>;

/** What gives a page of another site away, or a name that was bound to this machine. */
const pages: Fields[] = [
  { origin: "https://evil.example" },
  { origin: "null" },
  { origin: "http://localhost.evil.example" },
  { origin: "http://127.0.0.1.evil.example" },
  { origin: "file://" },
  { "sec-fetch-site": "cross-site" },
  { origin: "http://evil.example", "sec-fetch-site": "same-origin" },
  { host: "evil.example" },
  { host: "evil.example:8080" },
  { host: "localhost.evil.example" },
  { host: "127.0.0.1.evil.example" },
  { host: "127.0.0.2" },
  { host: "2130706433" },
  { host: "0" },
  { host: "" },
  { host: "localhost@evil.example" },
  { host: "[::ffff:7f00:1]" },
];

/** The forms of a request that a page can send without being asked first, and others. */
const bodies: [string, string, string | Buffer][] = [
  ["/v1/investors", "application/json", plainJson],
  ["/v1/investors", "text/plain", plainJson],
  [`${rpc}/CreateInvestor`, "application/json", jsonMessages.CreateInvestor],
  [`${rpc}/CreateInvestor`, "text/plain", jsonMessages.CreateInvestor],
  [`${rpc}/CreateInvestor`, "application/proto", messages.CreateInvestor],
  [`${rpc}/CreateInvestor`, "application/grpc-web+proto", frame(messages.CreateInvestor)],
];

/** How many records of strangers were stored; the plain service asks nobody who calls. */
const stored = (target: Target) => target.strangersRecords();

const gets = [
  "/v1/investors",
  "/v1/investors?pageSize=1",
  `${rpc}/ListInvestors?connect=v1&encoding=json&message=%7B%7D`,
  "/metrics",
];

/** A request that hides in another. */
const hidden = http1("POST", "/v1/investors", { "content-type": "application/json" }, plainJson);
const chunk = `${hidden.length.toString(16)}\r\n${hidden}\r\n`;
const length = String(hidden.length);

/** Requests whose ends are a matter of opinion (RFC 9112, 11.2); one reply at most is right. */
const ambiguous: [string, Fields, string][] = [
  [
    "both lengths, CL first",
    { "content-length": "4", "transfer-encoding": "chunked" },
    `0\r\n\r\n${hidden}`,
  ],
  [
    "both lengths, TE first",
    { "transfer-encoding": "chunked", "content-length": length },
    `0\r\n\r\n${hidden}`,
  ],
  [
    "a space before the colon",
    { "transfer-encoding ": "chunked", "content-length": length },
    `0\r\n\r\n${hidden}`,
  ],
  ["chunked, twice", { "transfer-encoding": "chunked, chunked" }, `${chunk}0\r\n\r\n`],
  ["chunked, then identity", { "transfer-encoding": "chunked, identity" }, `${chunk}0\r\n\r\n`],
  ["an encoding like chunked", { "transfer-encoding": "xchunked" }, `0\r\n\r\n${hidden}`],
  [
    "a tab before chunked",
    { "transfer-encoding": "\tchunked", "content-length": length },
    `0\r\n\r\n${hidden}`,
  ],
  ["chunked after a vertical tab", { "transfer-encoding": "\u000bchunked" }, `0\r\n\r\n${hidden}`],
  ["two lengths", { "content-length": `0, ${length}` }, String(hidden)],
  ["two headers of length", { "content-length": "0\r\ncontent-length: 5" }, String(hidden)],
  ["a signed length", { "content-length": "+0" }, String(hidden)],
  ["a length in hex", { "content-length": "0x0" }, String(hidden)],
  ["a negative length", { "content-length": "-1" }, String(hidden)],
  ["an empty length", { "content-length": "" }, String(hidden)],
  ["a length beyond numbers", { "content-length": "18446744073709551616" }, String(hidden)],
  ["a chunk of a signed size", { "transfer-encoding": "chunked" }, `+0\r\n\r\n${hidden}`],
  ["a chunk beyond numbers", { "transfer-encoding": "chunked" }, `10000000000000000\r\n${hidden}`],
  ["a chunk that ends in LF", { "transfer-encoding": "chunked" }, `0\n\n${hidden}`],
  ["an extension with LF", { "transfer-encoding": "chunked" }, `0;a\n${hidden}`],
  [
    "a folded header",
    { "x-folded": `a\r\n transfer-encoding: chunked`, "content-length": length },
    String(hidden),
  ],
  [
    "a header that ends in CR",
    { "x-cr": "a\rtransfer-encoding: chunked", "content-length": length },
    String(hidden),
  ],
  ["a header with NUL", { "x-nul": "a\0b", "content-length": length }, String(hidden)],
  [
    "a host twice",
    { host: "localhost\r\nhost: evil.example", "content-length": length },
    String(hidden),
  ],
];

const attacks: Attack[] = [
  {
    name: "pages of other sites and names bound to this machine, by HTTP/1.1",
    on: "plain",
    async run(target) {
      const before = stored(target);
      let count = 0;
      for (const fields of pages) {
        const requests = [
          ...bodies.map(([path, type, body]) =>
            http1("POST", path, { "content-type": type, connection: "close", ...fields }, body),
          ),
          ...gets.map((path) => http1("GET", path, { connection: "close", ...fields })),
        ];
        for (const request of requests) {
          const { socket, received, closed } = await target.open("http");
          socket.write(request);
          const name = `${JSON.stringify(fields)} ${request.toString("latin1").slice(0, 60)}`;
          expect(await closed(5_000), name).toBe(true);
          expect(received(), name).toMatch(/^HTTP\/1.1 4\d\d /);
          expect(received(), name).not.toMatch(/access-control-allow-origin/i);
        }
        count += requests.length;
      }
      expect(stored(target) - before, "records stored").toBe(0);
      return count;
    },
  },
  {
    name: "pages of other sites and names bound to this machine, by HTTP/2",
    on: "plain",
    async run(target) {
      const before = stored(target);
      const session = await target.session("grpc");
      for (const { host, ...fields } of pages) {
        const authority = host === undefined ? {} : { ":authority": host };
        const head = { ...grpcHeaders(`${rpc}/CreateInvestor`, fields), ...authority };
        const { status, grpcStatus } = await target.ask(
          session,
          head,
          frame(messages.CreateInvestor),
        );
        const name = JSON.stringify({ host, ...fields });
        expect(status === 200 && grpcStatus === "0", `served: ${name}`).toBe(false);
      }
      expect(stored(target) - before, "records stored").toBe(0);
      return pages.length;
    },
  },
  {
    name: "requests within requests",
    async run(target) {
      const before = target.kind === "plain" ? stored(target) : 0;
      const { greedy } = target;
      const connections = ambiguous.map(async ([name, fields, body]) => {
        const { socket, received, closed } = await target.open("http", { isKnown: true });
        const head = { "content-type": "text/plain", ...greedy, ...fields };
        const lines = Object.entries({ host: "localhost", ...head }).map(
          ([key, value]) => `${key}: ${value}\r\n`,
        );
        socket.write(`POST /v1/investors HTTP/1.1\r\n${lines.join("")}\r\n${body}`);
        await closed(1_500);
        const replies = received().match(/HTTP\/1\.1 \d+/g) ?? [];
        expect(replies.length, `${name}: ${replies}`).toBeLessThanOrEqual(1);
        expect(replies[0] ?? "HTTP/1.1 4", name).toMatch(/HTTP\/1.1 4/);
      });
      await Promise.all(connections);
      if (target.kind === "plain") expect(stored(target) - before, "records stored").toBe(0);
      return ambiguous.length;
    },
  },
  {
    name: "requests of versions that do not exist",
    async run(target) {
      const versions = [
        "HTTP/0.9",
        "HTTP/1.2",
        "HTTP/2.0",
        "HTTP/2",
        "HTTP/3.0",
        "HTTP/9.9",
        "http/1.1",
        "ICY",
        "",
      ];
      const paths = ["/healthz", "/v1/investors", `${rpc}/ListInvestors`];
      for (const version of versions) {
        for (const path of paths) {
          const { socket, received, closed } = await target.open("http");
          socket.write(`GET ${path} ${version}\r\nhost: localhost\r\n\r\n`);
          await closed(500);
          expect(received(), `${path} ${version}`).not.toMatch(/HTTP\/1\.1 2\d\d/);
        }
      }
      return versions.length * paths.length;
    },
  },
  {
    name: "text that is no text",
    async run(target) {
      const fields = { ...target.greedy, "content-type": "application/json" };
      const surrogate = '{"\\ud800":"x"}';
      const texts = [
        surrogate,
        '{"type":"\\udfff"}',
        '{"firstName":"\\ud800"}',
        '{"a":\u0000}',
        "\ufeff{}",
        '{"__proto__":{"type":"individual"}}',
        '{"constructor":{}}',
        "[]",
        "null",
        "1e999",
        '"x"',
        `{"type":"individual","type":"institution"}`,
      ];
      const invalid = [
        Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x7d]),
        Buffer.from([0x7b, 0x22, 0xed, 0xa0, 0x80, 0x22, 0x7d]),
      ];
      let count = 0;
      for (const body of [...texts.map((text) => Buffer.from(text)), ...invalid]) {
        for (const [path, type] of [
          ["/v1/investors", "application/json"],
          [`${rpc}/CreateInvestor`, "application/json"],
          [`${rpc}/CreateInvestor`, "application/json; charset=utf-8"],
        ] as const) {
          const headers = { ...fields, "content-type": type };
          const { status } = await target.request(path, { method: "POST", headers, body });
          expect(status, `${path} ${type} ${body}`).toBe(400);
        }
        const web = { ...fields, "content-type": "application/grpc-web+json" };
        const { status, headers, text } = await target.request(`${rpc}/CreateInvestor`, {
          method: "POST",
          headers: web,
          body: frame(body),
        });
        expect(status, `gRPC-Web ${body}`).toBe(200);
        expect(`${headers["grpc-status"]} ${text}`, `gRPC-Web ${body}`).toMatch(
          /^3 |grpc-status: ?3/,
        );
        count += 4;
      }
      for (const id of [
        "%ff",
        "%",
        "%00",
        "%ed%a0%80",
        "..%2f..",
        "x".repeat(7_000),
        "'%20OR%201=1",
        "$ne",
      ]) {
        const { status } = await target.request(`/v1/investors/${id}`, { headers: target.greedy });
        expect([400, 404], id).toContain(status);
        count += 1;
      }
      return count;
    },
  },
  {
    name: "CONNECT and upgrades after calls",
    async run(target) {
      const create = http1(
        "POST",
        "/v1/investors",
        { ...target.greedy, "content-type": "application/json" },
        plainJson,
      );
      const ends = [
        "CONNECT x HTTP/1.1\r\nhost: x\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n\r\n",
      ];
      for (const end of ends) {
        for (let i = 0; i < 10; i += 1) {
          const { socket } = await target.open("http", { isKnown: true });
          socket.write(Buffer.concat([create, create, Buffer.from(end), hidden]));
        }
      }
      await delay(300);
      return ends.length * 10;
    },
  },
];

describeAttacks("forged requests", attacks);
