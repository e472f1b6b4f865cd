import { createServer } from "node:http";
import { brotliCompressSync, gzipSync } from "node:zlib";
import {
  create,
  createRegistry,
  type DescMethod,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { compressionBrotli, compressionGzip, connectNodeAdapter } from "@connectrpc/connect-node";
import { describe, expect, it } from "vitest";
import { ErrorInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { exchangeHttp1 } from "./support/exchange.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask } from "./support/service.ts";
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
    const detail = { desc: ErrorInfoSchema, value: { reason: "TESTED", metadata: { id } } };
    throw new ConnectError(`„${id}“`, code, { "x-why": "because" }, [detail]);
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

/** Headers of calls that are good or too large. */
const variants = [
  ...["gzip", "br, gzip", "zstd,gzip;q=1", "identity", ""].map((accepted) => ({
    "accept-encoding": accepted,
  })),
  ...[{}, { "content-encoding": "identity" }, { "connect-timeout-ms": "0000009999" }],
  ...[{ "connect-protocol-version": "1" }, { "connect-protocol-version": "2" }],
];
const codes = Object.keys(Code).filter((name) => !Number(name));
const { createInvestor, getInvestor, listInvestors } = InvestorService.method;
const messages: [DescMethod, init: object, variants: object[]][] = [
  [createInvestor, aCreate({ city: "\u{1f600}", state: '"\\' }), variants],
  [listInvestors, { pageSize: 20 }, variants],
  [listInvestors, { pageToken: "x".repeat(9_000) }, variants],
  ...["", "Ada", ...codes].map((id): (typeof messages)[0] => [getInvestor, { id }, [{}]]),
];

it("a unary call by Connect is replied to as by connect-node itself, but for our reasons", async () => {
  const { port: ours } = await serveMethods(echo, { maxMessageBytes });
  const theirs = await serveByConnectNode();
  const seen = new Set<unknown>();
  for (const [{ name, input }, init, variants] of messages) {
    const message = create(input, init as never);
    const path = `${service}/${name}`;
    for (const [type, body] of [
      [json, Buffer.from(toJsonString(input, message))],
      ["application/proto", toBinary(input, message)],
    ] as const) {
      for (const variant of variants) {
        const headers = { "content-type": type, ...variant };
        const sent = { method: "POST", path, headers, body };
        const one = await exchangeHttp1(ours, sent);
        const other = await exchangeHttp1(theirs, sent);
        other.headers["cache-control"] = "no-store";
        // Theirs names no reason.
        if (one.body.includes("MESSAGE_TOO_LARGE")) {
          expect(JSON.parse(String(one.body)).code).toBe(JSON.parse(String(other.body)).code);
          other.body = one.body;
        }
        expect(one, JSON.stringify([name, init, headers])).toEqual(other);
        seen.add(one.statuses[0]).add(one.headers["content-encoding"]);
      }
    }
  }
  expect([...seen]).toEqual(expect.arrayContaining([200, 404, 429, 500, "gzip", "br", undefined]));
});

function post(port: number, type: string, body: string | Uint8Array, more = {}) {
  const init = { method: "POST", headers: { "content-type": type, ...more } };
  return ask({ port }, `${service}/ListInvestors`, { ...init, body: Buffer.from(body) });
}

describe("Connect and gRPC-Web", () => {
  it.each([
    ["gzip", gzipSync],
    ["br", brotliCompressSync],
  ] as const)("take %s, and no message that unpacks to 50 MB", async (encoding, pack) => {
    const { port } = await startInProcess();
    const bomb = pack(`{"pageToken":"${"a".repeat(50_000_000)}"}`);
    const headers = { "content-encoding": encoding };
    expect((await post(port, json, pack("{}"), headers)).status).toBe(200);
    const tooLarge = await post(port, json, bomb, headers);
    expect(await tooLarge.json()).toMatchObject({
      code: "resource_exhausted",
      details: [{ debug: { reason: "MESSAGE_TOO_LARGE" } }],
    });
  });

  it("refuse what they cannot read, by their own status", async () => {
    const { port, errors } = await startInProcess();
    for (const [type, headers, body, status] of [
      [json, { "connect-timeout-ms": "soon" }, "{}", 400],
      [json, { "content-encoding": "zip" }, "{}", 501],
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
    const malformed = (message: string | RegExp) => ({
      code: "invalid_argument",
      message: expect.stringMatching(message),
      details: [{ debug: { reason: "MALFORMED_REQUEST" } }],
    });
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
        const reply = await post(port, type, body);
        expect(await reply.json()).toMatchObject(malformed(message));
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
      expect(await reply.json()).toMatchObject(malformed(message));
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
      const reply = await ask({ port }, `${service}/${path}`, { method });
      expect(reply.status, path).toBe(status);
      expect(reply.headers.get("allow")?.split(", ").toSorted(), path).toEqual(allowed);
      expect(reply.headers.get("cache-control"), path).toBe("no-store");
      if (allowed) expect(await reply.json()).toMatchObject({ reason: "METHOD_NOT_ALLOWED" });
    }
    expect(errors).toEqual([]);
  });
});
