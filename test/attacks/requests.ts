/** Well-formed requests of every protocol, as bytes. */
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
import { frame } from "../support/raw-grpc.ts";

/** Stands in all records of good callers and in their tokens. */
export const secret = "S3CRET";

/** Stands in all records that are sent by those who attack. */
export const strangersText = "STRANGER";

/** Replaces it in what is sent with credentials, and may be stored; it is as long. */
export const customersText = "CUSTOMER";

/** The path of the service's methods. */
export const rpc = "/investor.v1.InvestorService";

const content = {
  firstName: `${strangersText}-1`,
  middleName: "",
  lastName: `${strangersText}-2`,
  addressLine1: `${strangersText}-3`,
  addressLine2: `${strangersText}-4`,
  city: `${strangersText}-5`,
  state: `${strangersText}-6`,
  zipCode: `${strangersText}-7`,
  country: "gb",
  language: "en",
};

/** A create, a get and a list, each as the message of its RPC. */
export const messages = {
  CreateInvestor: Buffer.from(
    toBinary(
      CreateInvestorRequestSchema,
      create(CreateInvestorRequestSchema, { ...content, type: InvestorType.INDIVIDUAL }),
    ),
  ),
  GetInvestor: Buffer.from(
    toBinary(
      GetInvestorRequestSchema,
      create(GetInvestorRequestSchema, { id: "0190a0b0-0000-7000-8000-000000000000" }),
    ),
  ),
  ListInvestors: Buffer.from(
    toBinary(ListInvestorsRequestSchema, create(ListInvestorsRequestSchema, { pageSize: 5 })),
  ),
};

/** The same as JSON. */
export const jsonMessages: Record<keyof typeof messages, string> = {
  CreateInvestor: JSON.stringify({ ...content, type: "INVESTOR_TYPE_INDIVIDUAL" }),
  GetInvestor: '{"id":"0190a0b0-0000-7000-8000-000000000000"}',
  ListInvestors: '{"pageSize":5}',
};

/** A create in plain JSON. */
export const plainJson = JSON.stringify({ ...content, type: "individual" });

const methods = ["CreateInvestor", "GetInvestor", "ListInvestors"] as const;

type Fields = Record<string, string>;

/** Requests by HTTP/1.1 of a path, each with a thousand trailers. */
export function withTrailers(path: string, fields: Record<string, string>): Buffer {
  const head = http1("GET", path, { ...fields, "transfer-encoding": "chunked" });
  const body = Buffer.from(`0\r\n${"x:y\r\n".repeat(1_000)}\r\n`);
  return Buffer.concat(Array(400).fill([head, body]).flat());
}

/** A request of HTTP/1.1. */
export function http1(
  method: string,
  path: string,
  fields: Fields = {},
  body?: Uint8Array | string,
) {
  const all: Fields = { host: "localhost", ...fields };
  if (body !== undefined) all["content-length"] ??= String(Buffer.byteLength(body));
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  const head = Buffer.from(`${method} ${path} HTTP/1.1\r\n${lines.join("")}\r\n`);
  return sign(Buffer.concat([head, Buffer.from(body ?? "")]), fields);
}

/** Bytes that name who may send them, if they come with credentials. */
function sign(bytes: Uint8Array, { authorization = "" }: Fields): Buffer {
  return authorization.includes(secret) ? customers(bytes) : Buffer.from(bytes);
}

/** The same bytes, as those send them who may store something. */
export function customers(bytes: Uint8Array): Buffer {
  const text = Buffer.from(bytes).toString("latin1");
  return Buffer.from(text.replaceAll(strangersText, customersText), "latin1");
}

/** A request of HTTP/1.1 of every form that the HTTP port replies to, by name. */
export function http1Requests(fields: Fields): Record<string, Buffer> {
  const post = (path: string, type: string, body: Uint8Array | string, more: Fields = {}) =>
    http1("POST", path, { ...fields, "content-type": type, ...more }, body);
  const get = (path: string) => http1("GET", path, fields);
  const chunked = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n0\r\n\r\n`;
  const head = http1("POST", "/v1/investors", {
    ...fields,
    "content-type": "application/json",
    "transfer-encoding": "chunked",
  });
  const forms = methods.flatMap((method): [string, Buffer][] => [
    [`Connect ${method}`, post(`${rpc}/${method}`, "application/json", jsonMessages[method])],
    [
      `Connect ${method} with a charset`,
      post(`${rpc}/${method}`, "application/json; charset=utf-8", jsonMessages[method]),
    ],
    [`Connect ${method}, binary`, post(`${rpc}/${method}`, "application/proto", messages[method])],
    [
      `gRPC-Web ${method}`,
      post(`${rpc}/${method}`, "application/grpc-web+proto", frame(messages[method]), {
        "grpc-timeout": "1S",
      }),
    ],
    [
      `gRPC-Web ${method}, JSON`,
      post(
        `${rpc}/${method}`,
        "application/grpc-web+json",
        frame(Buffer.from(jsonMessages[method])),
      ),
    ],
    [
      `Connect ${method} by GET`,
      get(
        `${rpc}/${method}?connect=v1&encoding=json&message=${encodeURIComponent(jsonMessages[method])}`,
      ),
    ],
  ]);
  return {
    ...Object.fromEntries(forms),
    "REST create": post("/v1/investors", "application/json", plainJson),
    "REST create, chunked": Buffer.concat([head, sign(Buffer.from(chunked(plainJson)), fields)]),
    "REST create with a key": post("/v1/investors", "application/json", plainJson, {
      "idempotency-key": '"9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d"',
    }),
    "REST get": get("/v1/investors/0190a0b0-0000-7000-8000-000000000000"),
    "REST list": get("/v1/investors"),
    "REST page": get("/v1/investors?pageSize=2"),
    "REST create, half a body": post("/v1/investors", "application/json", "{}", {
      "content-length": "4",
    }),
    "Connect of another codec": post(`${rpc}/ListInvestors`, "text/plain", "x"),
    "REST head": http1("HEAD", "/v1/investors", fields),
    probe: get("/readyz"),
    metrics: get("/metrics"),
    reference: get("/openapi.json"),
    preflight: http1("OPTIONS", "/v1/investors", { ...fields, origin: "http://localhost" }),
    upgrade: http1("GET", "/v1/investors", { ...fields, upgrade: "h2c", connection: "upgrade" }),
    expectation: post("/v1/investors", "application/json", plainJson, { expect: "100-continue" }),
    nothing: get("/nothing"),
  };
}

/** The frames of a connection of HTTP/2 that makes calls of every form. */
export function http2Frames(fields: Fields): Buffer[] {
  const post = (path: string, type: string, more: Fields = {}) => ({
    ":method": "POST",
    ":scheme": "http",
    ":path": path,
    ":authority": "localhost",
    "content-type": type,
    ...more,
    ...fields,
  });
  const te = { te: "trailers", "grpc-timeout": "1S" };
  const calls: [Fields, Uint8Array][] = [
    ...methods.flatMap((method): [Fields, Uint8Array][] => [
      [post(`${rpc}/${method}`, "application/grpc", te), frame(messages[method])],
      [post(`${rpc}/${method}`, "application/grpc+proto", te), frame(messages[method])],
      [post(`${rpc}/${method}`, "application/proto"), messages[method]],
      [post(`${rpc}/${method}`, "application/grpc-web+proto"), frame(messages[method])],
    ]),
    [post("/v1/investors", "application/json"), Buffer.from(plainJson)],
    [post("/grpc.health.v1.Health/Check", "application/grpc", te), frame(Buffer.alloc(0))],
    [post("/grpc.health.v1.Health/Watch", "application/grpc", te), frame(Buffer.alloc(0))],
    [
      post("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "application/grpc", te),
      frame(Buffer.from([0x3a, 0])),
    ],
  ];
  const frames = calls.flatMap(([head, body], i) => {
    const stream = 2 * i + 1;
    return [
      http2Frame(frameType.headers, frameFlag.endHeaders, stream, headerBlock(head)),
      http2Frame(0, frameFlag.endStream, stream, sign(body, fields)),
    ];
  });
  return [clientPreface, ...frames];
}

/** The headers of a call by gRPC. */
export function grpcHeaders(path: string, fields: Fields = {}): Fields {
  return {
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc",
    te: "trailers",
    ...fields,
  };
}
