import { once } from "node:events";
import {
  Agent,
  createServer,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request,
} from "node:http";
import { brotliCompressSync, brotliDecompressSync, gunzipSync, gzipSync } from "node:zlib";
import {
  create,
  createRegistry,
  type DescMessage,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { compressionBrotli, compressionGzip, connectNodeAdapter } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { ErrorInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  InvestorService,
  ListInvestorsRequestSchema,
} from "../gen/investor/v1/investor_pb.js";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { broken, createRandom, oddJson, type Random, seedOf } from "./support/random.ts";
import { frame } from "./support/raw-grpc.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { listen } from "./support/tcp.ts";

const maxMessageBytes = 8_192;
const service = "/investor.v1.InvestorService";
const json = "application/json";
const records = Array.from({ length: 20 }, () => anInvestor());

/** A service whose replies depend on nothing but the request. */
const echo: Methods = {
  createInvestor: ({ $unknown: _, $typeName: __, requestId: ___, ...content }) => content as object,
  getInvestor({ id }) {
    const code = Code[id as keyof typeof Code];
    if (code === undefined) return { id };
    const value = { reason: "TESTED", metadata: { id } };
    const metadata = { "x-why": "because" };
    throw new ConnectError(`„${id}“`, code, metadata, [{ desc: ErrorInfoSchema, value }]);
  },
  listInvestors: ({ pageSize, pageToken }) => ({
    investors: records.slice(0, pageSize & 31),
    nextPageToken: pageToken,
  }),
};

/** Serves it by connect-node as it is. */
async function serveByConnectNode() {
  const jsonOptions = {
    alwaysEmitImplicit: true,
    ignoreUnknownFields: false,
    registry: createRegistry(InvestorService),
    textDecoder: new TextDecoder("utf-8", { fatal: true }),
  };
  const adapter = connectNodeAdapter({
    routes: (router) => router.service(InvestorService, echo),
    acceptCompression: [compressionGzip, compressionBrotli],
    ...{ jsonOptions, readMaxBytes: maxMessageBytes },
  });
  return listen(createServer(adapter));
}

interface Sample {
  path: string;
  headers: OutgoingHttpHeaders;
  body: Buffer;
}

/** A request, good or broken in some way. */
function aSample(random: Random): Sample {
  const { int, pick } = random;
  const texts = ["", "Ada", "Łódź", "a".repeat(300), '"\\', "\u0000", "😀", "x".repeat(9_000)];
  const text = () => pick(texts);
  const codes = Object.keys(Code).filter((name) => !Number(name));
  const [method, schema, init] = pick<[string, DescMessage, object]>([
    [
      "CreateInvestor",
      CreateInvestorRequestSchema,
      aCreate({ city: text(), state: text(), requestId: text() }),
    ],
    ["GetInvestor", GetInvestorRequestSchema, { id: pick([text(), ...codes]) }],
    [
      "ListInvestors",
      ListInvestorsRequestSchema,
      { pageSize: pick([0, 1, 20, -1, 2 ** 31 - 1]), pageToken: text() },
    ],
  ]);
  const isJson = int(0, 1) === 0;
  const value = create(schema, init as never);
  const good = Buffer.from(isJson ? toJsonString(schema, value) : toBinary(schema, value));
  const bad = [
    broken(good, random),
    Buffer.from(good.toString("latin1").replace(/"(\w+)":/, '"$1x":'), "latin1"),
    Buffer.from(pick(oddJson)),
  ];
  const accepted = ["gzip", "br, gzip", "zstd,gzip;q=1", "identity", ""];
  return {
    path: `${service}/${method}`,
    headers: {
      "content-type": `application/${isJson ? "json" : "proto"}`,
      ...pick([{}, { "connect-protocol-version": pick(["1", "2"]) }]),
      ...pick([{}, { "connect-timeout-ms": pick(["5000", "0000009999"]) }]),
      ...pick([{}, { "accept-encoding": pick(accepted) }]),
      ...pick([{}, { "content-encoding": "identity" }]),
    },
    body: int(0, 1) === 0 ? good : pick(bad),
  };
}

async function send(port: number, agent: Agent, { path, headers, body }: Sample) {
  const req = request({ port, agent, path, method: "POST", headers }).end(body);
  const [res] = (await once(req, "response")) as [IncomingMessage];
  const packed = Buffer.concat(await Array.fromAsync(res));
  const encoding = res.headers["content-encoding"];
  const unpack = { gzip: gunzipSync, br: brotliDecompressSync }[String(encoding)];
  const { statusCode, headers: all } = res;
  const own = Object.fromEntries(Object.entries(all).filter(([name]) => name.startsWith("x-")));
  return {
    reply: { statusCode, type: all["content-type"], encoding, own },
    body: String(unpack?.(packed) ?? packed),
  };
}

it("a unary call by Connect is replied to as by connect-node itself, but for our reasons", async () => {
  const { port: ours } = await serveMethods(echo, { maxMessageBytes });
  const theirs = await serveByConnectNode();
  const agent = new Agent({ keepAlive: true });
  onTestFinished(() => agent.destroy());
  const random = createRandom(seedOf("connect"));
  const seen = { good: 0, failed: 0, malformed: 0, tooLarge: 0, compressed: 0 };
  for (let i = 0; i < 500; i += 1) {
    const sample = aSample(random);
    const [one, other] = await Promise.all([
      send(ours, agent, sample),
      send(theirs, agent, sample),
    ]);
    const told = `${i}: ${JSON.stringify(sample.headers)} ${sample.body.toString("latin1", 0, 200)}`;
    if (one.body.includes('"reason":"MALFORMED_REQUEST"')) {
      // For connect-node, bytes that are no message are a fault of the service: 500.
      expect(one.reply.statusCode, told).toBe(400);
      expect(other.reply.statusCode, told).toBeOneOf([400, 500]);
      seen.malformed += 1;
      continue;
    }
    expect(one.reply, told).toEqual(other.reply);
    if (one.reply.encoding) seen.compressed += 1;
    if (one.body.includes('"reason":"MESSAGE_TOO_LARGE"')) {
      expect(JSON.parse(one.body).code, told).toBe(JSON.parse(other.body).code);
      seen.tooLarge += 1;
    } else {
      expect(one.body, told).toBe(other.body);
      seen[one.reply.statusCode === 200 ? "good" : "failed"] += 1;
    }
  }
  for (const [what, times] of Object.entries(seen)) expect(times, what).toBeGreaterThan(1);
});

const post = (port: number, type: string, body: string | Uint8Array, headers = {}) =>
  fetch(`http://127.0.0.1:${port}${service}/ListInvestors`, {
    ...{ method: "POST", headers: { "content-type": type, ...headers } },
    body: new Uint8Array(Buffer.from(body)),
  });

describe("Connect and gRPC-Web", () => {
  it.each([
    ["gzip", gzipSync],
    ["br", brotliCompressSync],
  ] as const)("take %s, and no message that unpacks to 50 MB", async (encoding, pack) => {
    const { port } = await startInProcess();
    const bomb = pack(`{"pageToken":"${"a".repeat(50_000_000)}"}`);
    const web = "application/grpc-web+json";
    const ofConnect = { "content-encoding": encoding };
    const ofWeb = { "grpc-encoding": encoding };
    expect((await post(port, json, pack("{}"), ofConnect)).status).toBe(200);
    const good = await post(port, web, frame(pack("{}"), true), ofWeb);
    expect(await good.text()).toContain("grpc-status: 0");
    const tooLarge = await post(port, json, bomb, ofConnect);
    expect(await tooLarge.json()).toMatchObject({
      code: "resource_exhausted",
      details: [{ debug: { reason: "MESSAGE_TOO_LARGE" } }],
    });
    const refused = await post(port, web, frame(bomb, true), ofWeb);
    expect(await refused.text()).toContain("grpc-status: 8");
  });

  it("refuse what they cannot read, by their own status", async () => {
    const { port, errors } = await startInProcess();
    for (const [type, headers, body, status] of [
      [json, { "connect-timeout-ms": "soon" }, "{}", 400],
      [json, { "content-encoding": "zip" }, "{}", 501],
      [json, { "content-encoding": "gzip" }, "no gzip", 400],
      ["application/connect+json", {}, "\0\0\0\0\u0003{}", 415],
      ["application/grpc", {}, "\0\0\0\0\0", 415],
      ["application/grpc-web-text", {}, "", 415],
      ["text/plain", {}, "{}", 415],
    ] as const) {
      const reply = await post(port, type, body, headers);
      expect(reply.status, type).toBe(status);
      const content = await reply.json();
      if (status === 415) {
        const detail = expect.stringMatching(/the Content-Type must be .*json|gRPC needs HTTP\/2/);
        expect(content, type).toMatchObject({ reason: "UNSUPPORTED_MEDIA_TYPE", detail });
      }
      if (status === 400) {
        expect(content).toMatchObject({ details: [{ debug: { reason: "MALFORMED_REQUEST" } }] });
      }
    }
    expect(errors).toEqual([]);
  });

  it("say what is wrong with JSON, and where", async () => {
    const { port } = await startInProcess();
    for (const [body, message] of [
      ['{"pageToken":\n"s3cret}', "the body is not valid JSON at line 2, column 9"],
      ['{"pageToken":"s3cret"} {}', "the body is not valid JSON at column 24"],
      ['["s3cret"]', "the body is not a JSON object"],
      ["null", "the body is not a JSON object"],
      ['{"pageToken":"s3cret","pageToken":"b"}', "the body repeats a member"],
      [Buffer.from([0xe9]), "the body is not UTF-8"],
      ['{"s3":1}', /: key "s3" is unknown$/],
      ['{"pageToken":["s3cret"]}', /field investor.v1.ListInvestorsRequest.page_token from JSON$/],
    ] as const) {
      for (const type of [json, `${json}; charset=utf-8`]) {
        const reply = await (await post(port, type, body)).json();
        const details = [{ debug: { reason: "MALFORMED_REQUEST" } }];
        expect(reply).toMatchObject({ message: expect.stringMatching(message), details });
      }
    }
    const gzip = { "content-encoding": "gzip" };
    for (const [type, body, headers] of [
      ["application/proto", Buffer.of(0xff), {}],
      ["application/proto", gzipSync(Buffer.of(0xff)), gzip],
      ["application/proto", "no gzip", gzip],
      [json, "no gzip", gzip],
    ] as const) {
      const reply = await post(port, type, body, headers);
      const message = "the request is not a valid message of this method";
      const details = [{ debug: { reason: "MALFORMED_REQUEST" } }];
      expect(await reply.json()).toMatchObject({ code: "invalid_argument", message, details });
    }
  });

  it("take reads by GET, and no other method but POST", async () => {
    const { port, errors } = await startInProcess();
    for (const [method, path, status, allowed] of [
      ["GET", "ListInvestors?connect=v1&encoding=json&message=%7B%7D", 200],
      ["GET", "ListInvestors?connect=v1&encoding=proto&base64=1&message=CAE", 200],
      ["GET", "ListInvestors?connect=v1&encoding=json&message=%7B", 400],
      ["GET", "ListInvestors?connect=v1&encoding=json", 400],
      ["GET", "ListInvestors?connect=v1&encoding=jso%6E&message=%7B%7D", 200],
      ["GET", "ListInvestors?connect=v1&encoding=proto&base64=1&message=!", 400],
      ["GET", "ListInvestors?connect=v1&encoding=proto&base64=1&message=CP8", 400],
      ["GET", "ListInvestors?connect=v1&encoding=text&message=", 415],
      ["GET", "CreateInvestor?connect=v1&encoding=json&message=%7B%7D", 405, ["POST"]],
      ["PUT", "GetInvestor", 405, ["GET", "POST"]],
    ] as const) {
      const reply = await fetch(`http://127.0.0.1:${port}${service}/${path}`, { method });
      expect(reply.status, path).toBe(status);
      expect(reply.headers.get("allow")?.split(", ").toSorted(), path).toEqual(allowed);
      expect(reply.headers.get("cache-control"), path).toBe("no-store");
      if (allowed) expect(await reply.json()).toMatchObject({ reason: "METHOD_NOT_ALLOWED" });
    }
    expect(errors).toEqual([]);
  });
});
