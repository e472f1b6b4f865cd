/** Requests of every form whose bytes are changed, cut or reset, or that try to look like others. */
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  InvestorType,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import {
  clientPreface,
  frameFlag,
  frameType,
  headerBlock,
  http2Frame,
} from "../support/http2-frames.ts";
import type { Random } from "../support/random.ts";
import { frame } from "../support/raw-grpc.ts";
import { institution } from "../support/records.ts";
import {
  type Attack,
  type Connection,
  type Fields,
  forbidden,
  type Hostile,
  http1,
  tokens,
} from "./target.ts";

export const rpc = "/investor.v1.InvestorService";
export const watch = "/grpc.health.v1.Health/Watch";
export const check = "/grpc.health.v1.Health/Check";
export const reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/** A request for the list of services by reflection. */
export const listServices = Buffer.from([0x3a, 0]);

const id = "0190a0b0-0000-7000-8000-000000000000";
const page = { pageSize: 5 };

/** The message of each method: in protobuf, and as JSON of Connect. */
export function messagesOf(text: string): Record<string, [Buffer, string]> {
  const record = { ...institution, firstName: `${text}-1`, lastName: `${text}-2`, city: text };
  const investor = { ...record, type: InvestorType.INSTITUTION };
  const created = create(CreateInvestorRequestSchema, investor);
  const got = create(GetInvestorRequestSchema, { id });
  const listed = create(ListInvestorsRequestSchema, page);
  const json = JSON.stringify({ ...record, type: "INVESTOR_TYPE_INSTITUTION" });
  return {
    CreateInvestor: [Buffer.from(toBinary(CreateInvestorRequestSchema, created)), json],
    GetInvestor: [Buffer.from(toBinary(GetInvestorRequestSchema, got)), JSON.stringify({ id })],
    ListInvestors: [
      Buffer.from(toBinary(ListInvestorsRequestSchema, listed)),
      JSON.stringify(page),
    ],
  };
}

/** The body of a create in plain JSON. */
export function plainJson(text: string): string {
  return JSON.stringify({ ...institution, firstName: text, lastName: `${text}-2`, city: text });
}

const json = { "content-type": "application/json" };

/** Requests of HTTP/1.1 of every form that the HTTP port serves. */
export function http1Requests({ credentials, text }: Pick<Hostile, "credentials" | "text">) {
  const post = (path: string, type: string, body: Uint8Array | string, more: Fields = {}) =>
    http1("POST", path, { ...credentials, "content-type": type, ...more }, body);
  const get = (path: string, more: Fields = {}) => http1("GET", path, { ...credentials, ...more });
  const body = plainJson(text);
  const chunked = { ...credentials, ...json, "transfer-encoding": "chunked" };
  return [
    ...Object.entries(messagesOf(text)).flatMap(([method, [binary, message]]) => {
      const path = `${rpc}/${method}`;
      const query = `connect=v1&encoding=json&message=${encodeURIComponent(message)}`;
      const inTime = { "grpc-timeout": "1S" };
      return [
        post(path, "application/json", message),
        post(path, "application/json; charset=utf-8", message),
        post(path, "application/proto", binary, { "connect-timeout-ms": "1000" }),
        post(path, "application/grpc-web+proto", frame(binary), inTime),
        post(path, "application/grpc-web+json", frame(Buffer.from(message))),
        post(path, "application/connect+json", frame(Buffer.from(message))),
        get(`${path}?${query}`),
      ];
    }),
    post("/v1/investors", "application/json", body),
    post("/v1/investors", "application/json", body, { "idempotency-key": `"${id}"` }),
    post("/v1/investors", "application/json", body, { expect: "100-continue" }),
    http1("POST", "/v1/investors", chunked),
    Buffer.from(`${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`),
    get(`/v1/investors/${id}`),
    get("/v1/investors?pageSize=2"),
    get("/v1/investors", { "accept-encoding": "gzip" }),
    get("/v1/investors", { upgrade: "h2c", connection: "upgrade" }),
    http1("HEAD", "/v1/investors", credentials),
    http1("OPTIONS", "/v1/investors", { origin: "http://localhost" }),
    get("/metrics"),
    get("/readyz"),
    get("/openapi.json"),
    get("/nothing"),
  ];
}

/** The fields of a request of HTTP/2 by POST. */
export function fieldsOf(path: string, fields: Fields = {}, type = "application/grpc"): Fields {
  return {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "localhost",
    ":path": path,
    "content-type": type,
    ...(type.startsWith("application/grpc") && { te: "trailers" }),
    ...fields,
  };
}

/** The frames that open a stream. */
export function openStream(stream: number, fields: Fields): Buffer {
  return http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(fields));
}

/** A frame of a stream's data. */
export function data(stream: number, bytes: Uint8Array, isLast = false): Buffer {
  return http2Frame(frameType.data, isLast ? frameFlag.endStream : frameFlag.none, stream, bytes);
}

/** Frames of a connection that makes calls of every form over HTTP/2. */
export function http2Frames({ credentials, text }: Hostile): Buffer[] {
  const calls: [string, string, Buffer][] = [
    ...Object.entries(messagesOf(text)).flatMap(([method, [binary]]): typeof calls => [
      [`${rpc}/${method}`, "application/grpc", frame(binary)],
      [`${rpc}/${method}`, "application/grpc+proto", frame(binary)],
      [`${rpc}/${method}`, "application/grpc-web+proto", frame(binary)],
      [`${rpc}/${method}`, "application/proto", binary],
    ]),
    ["/v1/investors", "application/json", Buffer.from(plainJson(text))],
    [check, "application/grpc", frame(Buffer.alloc(0))],
    [watch, "application/grpc", frame(Buffer.alloc(0))],
    [reflection, "application/grpc", frame(listServices)],
  ];
  const frames = calls.flatMap(([path, type, body], i) => [
    openStream(2 * i + 1, fieldsOf(path, { "grpc-timeout": "1S", ...credentials }, type)),
    data(2 * i + 1, body, true),
  ]);
  return [clientPreface, ...frames];
}

/** Bytes that mean something to one parser or another, and numbers on which counting goes wrong. */
const telling = [0, 1, 3, 4, 5, 8, 10, 13, 0x20, 0x22, 0x2f, 0x3a, 0x7b, 0x7f, 0x80, 0xc0, 0xff];
const numbers = ["0", "-1", "1e9", "65537", "4294967296", "9007199254740993", "0x10", "+5", ""];

const mutations: ((bytes: Buffer, from: number, to: number, random: Random) => Buffer[])[] = [
  // Overwrites, truncates, removes, repeats, moves, inserts, and changes a number.
  (bytes, from, _, random) => [
    bytes.subarray(0, from),
    Buffer.from([random.pick(telling)]),
    bytes.subarray(from + 1),
  ],
  (bytes, from) => [bytes.subarray(0, from)],
  (bytes, from, to) => [bytes.subarray(0, from), bytes.subarray(to)],
  (bytes, from, to, random) => [
    bytes.subarray(0, from),
    ...Array(random.pick([2, 3, 20, 200])).fill(bytes.subarray(from, to)),
    bytes.subarray(to),
  ],
  (bytes, from, to) => [bytes.subarray(to), bytes.subarray(from, to), bytes.subarray(0, from)],
  (bytes, from, _, random) => [
    bytes.subarray(0, from),
    Buffer.from(Array.from({ length: random.int(1, 64) }, () => random.int(0, 255))),
    bytes.subarray(from),
  ],
  (bytes, from, _, random) => {
    const [digits] = /\d+/.exec(bytes.subarray(from).toString("latin1")) ?? [];
    if (digits === undefined) return [bytes];
    const at = bytes.indexOf(digits, from);
    const after = bytes.subarray(at + digits.length);
    return [bytes.subarray(0, at), Buffer.from(random.pick(numbers)), after];
  },
];

/** Bytes with one to four changes; at most 256 KiB. */
function mutate(bytes: Buffer, random: Random): Buffer {
  let changed = bytes;
  for (let i = random.int(1, 4); i > 0; i -= 1) {
    const from = random.int(0, changed.length);
    const to = Math.min(changed.length, from + random.int(0, random.pick([16, 128, 1e6])));
    changed = Buffer.concat(random.pick(mutations)(changed, from, to, random)).subarray(0, 262_144);
  }
  return changed;
}

/** Frames of which some are missing, doubled, moved or mutated. */
function mutateFrames(frames: Buffer[], random: Random): Buffer {
  const changed = [...frames];
  for (let i = random.int(1, 6); i > 0 && changed.length > 0; i -= 1) {
    const at = random.int(0, changed.length - 1);
    const [one = clientPreface] = changed.splice(at, 1);
    const altered = Buffer.from(one);
    // The first nine bytes are length, type, flags and stream (RFC 9113, 4.1).
    altered[random.int(0, 8)] = random.pick(telling);
    const elsewhere = random.int(0, changed.length);
    const how = random.pick(["drop", "double", "move", "alter", "mutate"]);
    if (how === "double") changed.splice(at, 0, one, one);
    if (how === "move") changed.splice(elsewhere, 0, one);
    if (how === "alter") changed.splice(at, 0, altered);
    if (how === "mutate") changed.splice(at, 0, mutate(one, random));
  }
  return Buffer.concat(changed);
}

/** Sends bytes in some pieces, and ends the connection at any instant, in one way or another. */
async function send({ socket, tcp, closes }: Connection, bytes: Buffer, random: Random) {
  const cuts = Array.from({ length: random.int(0, 3) }, () => random.int(0, bytes.length));
  const edges = [0, ...cuts.sort((a, b) => a - b), bytes.length];
  for (const [i, edge] of edges.slice(1).entries()) {
    if (!tcp.destroyed) socket.write(bytes.subarray(edges[i], edge));
    if (random.int(0, 1) === 0) await delay(random.int(0, 5));
  }
  const ending = random.pick(["reset", "reset", "leave", "half-close", "wait"]);
  if (ending === "half-close") socket.end();
  if (ending !== "leave") await closes(random.int(0, ending === "reset" ? 10 : 100));
  if (ending === "reset") tcp.resetAndDestroy();
  else socket.destroy();
}

const pickPort = (random: Random) => random.pick(["grpc", "http"] as const);

/** A request that must not be served, since another one is around it. */
const hidden = http1(
  "POST",
  "/v1/investors",
  { ...json, authorization: `Bearer ${tokens.greedy}` },
  plainJson(forbidden),
).toString("latin1");
const hiddenLength = String(hidden.length);
const hiddenChunk = `${hidden.length.toString(16)}\r\n${hidden}\r\n`;

/** Requests whose ends are a matter of opinion (RFC 9112, 11.2). */
const ambiguous: [Fields, string][] = [
  [{ "content-length": "4", "transfer-encoding": "chunked" }, `0\r\n\r\n${hidden}`],
  [{ "transfer-encoding": "chunked", "content-length": hiddenLength }, `0\r\n\r\n${hidden}`],
  [{ "transfer-encoding ": "chunked", "content-length": hiddenLength }, `0\r\n\r\n${hidden}`],
  [{ "transfer-encoding": "chunked, identity" }, `${hiddenChunk}0\r\n\r\n`],
  [{ "transfer-encoding": "xchunked" }, `0\r\n\r\n${hidden}`],
  [{ "transfer-encoding": "\u000bchunked" }, `0\r\n\r\n${hidden}`],
  [{ "content-length": `0, ${hiddenLength}` }, hidden],
  [{ "content-length": "0\r\ncontent-length: 5" }, hidden],
  ...["+0", "0x0", "-1", "18446744073709551616"].map((length): [Fields, string] => [
    { "content-length": length },
    hidden,
  ]),
  [{ "transfer-encoding": "chunked" }, `+0\r\n\r\n${hidden}`],
  [{ "transfer-encoding": "chunked" }, `10000000000000000\r\n${hidden}`],
  [{ "transfer-encoding": "chunked" }, `0\n\n${hidden}`],
  [{ "x-cr": "a\rtransfer-encoding: chunked", "content-length": hiddenLength }, hidden],
];

/** Credentials that are nobody's. */
const authorizations = [
  ...["", "Bearer", "Bearer ", "Bearer null", "Bearer good", "Basic Z29vZDpnb29k", "Bearer .."],
  `Bearer ${tokens.good.slice(0, -1)}`,
  `Bearer ${tokens.good}0`,
  `Bearer ${tokens.good.toLowerCase()}`,
  `Bearer ${tokens.good},${tokens.good}`,
  `Token ${tokens.good}`,
  "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJnb29kIn0.",
  `Bearer ${"x".repeat(8_000)}`,
  "Bearer __proto__",
];

/** Fields by which a caller might be taken for another, and other spellings of a path. */
const disguises: Fields[] = [
  {},
  { "x-forwarded-for": "127.0.0.1", "x-forwarded-user": "good", "x-real-ip": "127.0.0.1" },
  { "proxy-authorization": `Bearer ${tokens.good}`, cookie: `authorization=${tokens.good}` },
  { "x-http-method-override": "GET", "x-original-url": "/healthz", "x-rewrite-url": "/healthz" },
  { "x-client-cert": "CN=good", "ssl-client-verify": "SUCCESS" },
];
const spellings: ((path: string) => string)[] = [
  (path) => path,
  (path) => `${path}/`,
  (path) => `/${path}`,
  (path) => path.toUpperCase(),
  (path) => path.replace("/v1", "/%76%31").replace("investor.v1", "investor%2ev1"),
  (path) => `/healthz/..${path}`,
  (path) => `${path};/healthz`,
  (path) => `${path}%00`,
  (path) => `http://localhost${path}`,
  (path) => `${path}?access_token=${tokens.good}`,
];
const methods = ["POST", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"];
const paths = ["/v1/investors", `${rpc}/CreateInvestor`, `${rpc}/ListInvestors`, "/metrics"];

/** Values that mean something in a field that the service or Connect reads. */
const odd: [string, string][] = [
  ["content-type", "application/json; charset=utf-16"],
  ["content-type", "application/grpc-web-text"],
  ["content-type", "text/plain"],
  ["content-encoding", "br"],
  ["content-encoding", "gzip, gzip"],
  ["accept-encoding", "br;q=0"],
  ["grpc-encoding", "snappy"],
  ["grpc-timeout", "99999999H"],
  ["grpc-timeout", "-1S"],
  ["connect-timeout-ms", "99999999999"],
  ["connect-protocol-version", "2"],
  ["idempotency-key", '"'],
  ["traceparent", "ff-0-0-0"],
  ["expect", "200-ok"],
  ["host", "["],
  ["origin", "null"],
];

/** Sends a request that is valid but for one field or a few bytes, and demands an end in time. */
const oddRequest: Attack = async ({ random, open, credentials, text }) => {
  const [binary, message] = random.pick(Object.values(messagesOf(text)));
  const isJson = random.int(0, 1) === 0;
  const type = isJson ? "json" : "proto";
  const content = isJson ? Buffer.from(message) : binary;
  const isWeb = random.int(0, 1) === 0;
  const mutated = random.int(0, 1) === 0 ? mutate(content, random).subarray(0, 60_000) : content;
  const path = `${rpc}/${random.pick(Object.keys(messagesOf(text)))}`;
  const fields = {
    connection: "close",
    "content-type": `application/${isWeb ? "grpc-web+" : ""}${type}`,
    ...credentials,
    ...Object.fromEntries([random.pick(odd), random.pick(odd)]),
  };
  const { socket, closes } = await open("http");
  const request = http1("POST", path, fields, isWeb ? frame(mutated) : mutated);
  socket.write(request);
  if (!(await closes(8_000))) throw new Error(`no end of ${request.toString("latin1", 0, 400)}`);
};

/** Attacks by requests that are almost right. */
export const forms: Record<string, Attack> = {
  async "mutated requests of HTTP/1.1"(hostile) {
    const { random, open } = hostile;
    const requests = http1Requests(hostile);
    const pipeline = Array.from({ length: random.int(1, 4) }, () => random.pick(requests));
    const port = random.pick(["http", "http", "http", "grpc"] as const);
    await send(await open(port, "http/1.1"), mutate(Buffer.concat(pipeline), random), random);
  },
  async "mutated frames of HTTP/2"(hostile) {
    const { random, open } = hostile;
    const frames = http2Frames(hostile);
    await send(await open(pickPort(random), "h2"), mutateFrames(frames, random), random);
  },
  async "valid calls that are reset at any instant"(hostile) {
    const { random, open } = hostile;
    const isHttp1 = random.int(0, 1) === 0;
    const all = isHttp1 ? random.shuffle(http1Requests(hostile)) : http2Frames(hostile);
    const some = Buffer.concat(all.slice(0, random.int(1, all.length)));
    const { socket, tcp, closes } = await open(
      isHttp1 ? "http" : pickPort(random),
      isHttp1 ? undefined : "h2",
    );
    socket.write(some);
    const isAnswered = once(socket, "data").catch(() => {});
    await Promise.race([isAnswered, closes(random.pick([random.int(0, 20), 500]))]);
    tcp.resetAndDestroy();
  },
  "requests with odd fields": oddRequest,
  async "requests within requests"({ random, open, credentials }) {
    const [fields, body] = random.pick(ambiguous);
    const { socket, received, closes } = await open("http");
    const head = http1("POST", "/v1/investors", { ...json, ...credentials, ...fields });
    socket.write(Buffer.concat([head, Buffer.from(body, "latin1")]));
    if (!(await closes(5_000))) throw new Error(`not closed: ${JSON.stringify(fields)}`);
    if (/^HTTP\/1.1 [23]/m.test(received())) throw new Error(`served: ${JSON.stringify(fields)}`);
    socket.destroy();
  },
  async "strangers in disguise"({ random, open }) {
    const path = random.pick(paths);
    const isStored = path.endsWith("CreateInvestor");
    const body = isStored ? messagesOf(forbidden).CreateInvestor?.[1] : plainJson(forbidden);
    const authorization = random.pick(authorizations);
    const fields = { connection: "close", ...json, ...random.pick(disguises), authorization };
    const spelled = random.pick(spellings)(path);
    const request = http1(random.pick(methods), spelled, fields, body);
    const { socket, received, closes } = await open("http");
    socket.write(request);
    if (!(await closes(5_000))) throw new Error(`no end of ${request.toString("latin1", 0, 400)}`);
    const status = /^HTTP\/1.1 (\d+)/.exec(received())?.[1] ?? "400";
    if (!/^4|501|505/.test(status))
      throw new Error(`${status}: ${request.toString("latin1", 0, 400)}`);
  },
};

/** Attacks on TLS itself. */
export const tlsForms: Record<string, Attack> = {
  async "mutated handshakes"({ random, openTcp }) {
    const hello = Buffer.concat([
      Buffer.from("160301006e0100006a0303", "hex"),
      Buffer.alloc(32, random.int(0, 255)),
      Buffer.from("00000613011302c02f0100003b", "hex"),
      Buffer.from("000a00080006001d00170018000b00020100000d000a00080403040108040807", "hex"),
      Buffer.from("0010000e000c02683208687474702f312e31002b0003020304", "hex"),
    ]);
    await send(await openTcp(pickPort(random)), mutate(hello, random), random);
  },
  async "bytes between the records of TLS"(hostile) {
    const { random, open } = hostile;
    const connection = await open(pickPort(random), "h2");
    connection.socket.write(Buffer.concat(http2Frames(hostile)));
    const bytes = mutate(Buffer.from("1703030020".repeat(9), "hex"), random);
    await send({ ...connection, socket: connection.tcp }, bytes, random);
  },
};
