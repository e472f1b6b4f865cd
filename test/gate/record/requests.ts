/** What is sent beside calls: requests as lines of text, and bytes that are no request. */
import { gzipSync } from "node:zlib";
import { deriveId } from "../../../src/investor/ids.ts";
import type { Sent } from "../../support/exchange.ts";
import { frame, paths } from "../../support/raw-grpc.ts";
import { institution } from "../../support/records.ts";
import { http1 } from "../../support/tcp.ts";

/** The request id, and the id, of the first record. */
export const requestId = "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d";
export const id = deriveId("", requestId);
const record = JSON.stringify(institution);
export const rest = "/v1/investors";
const aJson = "content-type: application/json";
const aGrpc = "content-type: application/grpc";
const health = "/grpc.health.v1.Health";

/** Requests of HTTP/1.1, one a line: method and path, headers, and a body as {@link toBody} reads it. */
export const requests = `
GET /healthz
HEAD /healthz
POST /healthz
GET /readyz
GET /openapi.json
HEAD /openapi.json
GET /metrics
GET /
HEAD /
POST /
GET /nothing
OPTIONS ${rest}
PUT ${rest}
DELETE ${rest}
TRACE ${rest}
POST ${rest}/${id}
DELETE ${rest}/${id}
HEAD ${rest}/${id}
GET ${paths.create}
OPTIONS ${paths.create}
GET ${paths.list}
HEAD ${paths.list}
PATCH ${paths.list}
CONNECT localhost:80
OPTIONS *
GET http://localhost${rest}/${id}
GET http://elsewhere.example${rest}/${id}
HEAD ${rest}
GET ${rest}/
GET ${rest}/a/b
GET ${rest}/%zz
GET ${rest}/${id}?a=1
GET ${rest}?pageSize=x
GET ${rest}?pageSize=1&pageSize=2
GET ${rest}?pageSize=99999999999
GET ${rest}?pageSize=
GET ${rest}?
GET ${rest}?a=1&b=2
POST ${rest}?a=1 | ${aJson} | ${record}
POST ${rest} | ${aJson}; idempotency-key: "${requestId}" | ${record}
POST ${rest} | ${aJson}; idempotency-key: x | ${record}
POST ${rest} | ${aJson}; expect: 100-continue; idempotency-key: ${requestId} | ${record}
POST ${rest} | ${aJson};charset="UTF-8"; idempotency-key: ${requestId} | ${record}
POST ${rest} | ${aJson};charset=latin1 | ${record}
POST ${rest} | content-type: text/plain | ${record}
POST ${rest} | content-type: | ${record}
POST ${rest} |  | ${record}
POST ${rest} | ${aJson}; content-encoding: gzip | gzip:${record}
POST ${rest} | ${aJson}
POST ${rest} | ${aJson} | null
POST ${rest} | ${aJson} | [
POST ${rest} | ${aJson} | {}
POST ${rest} | ${aJson} | {"city":"a","city":"b"}
POST ${rest} | ${aJson} | {"city":1,"a/b~":2}
POST ${rest} | ${aJson} | hex:22ff
POST ${paths.create} | ${aJson}
POST ${paths.create} | ${aJson} | null
POST ${paths.create} | ${aJson} | [
POST ${paths.create} | ${aJson} | {}
POST ${paths.create} | ${aJson} | {"city":"a","city":"b"}
POST ${paths.create} | ${aJson} | {"city":1}
POST ${paths.create} | ${aJson} | {"a/b~":1}
POST ${paths.create} | ${aJson} | hex:22ff
POST ${paths.create} | ${aJson}; content-encoding: gzip | gzip:${"x".repeat(70_000)}
POST ${paths.get} | content-type: application/proto | hex:0aff
POST ${paths.get} | content-type: application/proto; content-encoding: gzip | x
POST ${paths.list} | ${aJson}; content-encoding: gzip | gzip:{"pageSize":1}
POST ${paths.list} | ${aJson}; content-encoding: snappy | {}
POST ${paths.list} | ${aJson}; accept-encoding: br, gzip | {"pageSize":1}
POST ${paths.create} | ${aJson};charset=utf-8; accept-encoding: gzip | {"requestId":"x","city":"${"x".repeat(257)}"}
POST ${paths.list} | content-type: application/grpc-web; grpc-encoding: snappy | frame:
POST ${paths.list} | content-type: application/grpc-web | hex:00000000000000000001ff
POST ${paths.list} | ${aJson}; connect-protocol-version: 2 | {}
POST ${paths.list} | ${aJson}; host: elsewhere.example | {}
POST ${paths.list} | ${aGrpc} | frame:
POST ${paths.list} | content-type: application/grpc-web-text | frame:
POST ${paths.list} | content-type: application/connect+json | frame:
POST ${paths.list} | content-type: application/xml | <a/>
POST ${paths.list} | content-type: application/grpc-web
POST ${paths.list} | content-type: application/grpc-web | hex:000000000901
GET ${paths.list}?connect=v1&encoding=xml&message=
GET ${paths.list}?message=
GET ${paths.list}?connect=v1&encoding=json&message=%7B
POST /investor.v1.InvestorService/Nothing | ${aJson} | {}
POST ${health}/Check | ${aJson} | {}
POST ${health}/Check | ${aJson} | {"service":"investor.v1.InvestorService"}
POST ${health}/Check | ${aJson} | {"service":"x"}
POST ${health}/Check | content-type: application/grpc-web | frame:
POST ${health}/List | ${aJson} | {}
GET ${health}/Check?connect=v1&encoding=json&message=%7B%7D
GET ${rest} | host: elsewhere.example
GET /healthz | host: elsewhere.example
GET ${rest} | origin: https://elsewhere.example
GET ${rest} | sec-fetch-site: cross-site
POST /nothing | expect: 100-continue | x
GET ${rest}/${id} | connection: close
GET ${rest} | a: ${"x".repeat(17_000)}
GET ${rest}?a=${"x".repeat(17_000)}
`;

/** The same of HTTP/2. */
export const streams = `
POST /investor.v1.InvestorService/Nothing | ${aGrpc} | frame:
POST /nothing | ${aGrpc} | frame:
GET ${paths.list} | ${aGrpc}
PUT ${paths.list} | ${aGrpc} | frame:
POST ${paths.list} | ${aGrpc}
POST ${paths.list} | ${aGrpc} | hex:0000
POST ${paths.list} | ${aGrpc} | hex:00000000000000000000
POST ${paths.list} | ${aGrpc} | hex:00000000000000000001ff
POST ${paths.list} | ${aGrpc}; grpc-encoding: gzip | hex:00000000000000000001ff
POST ${paths.list} | ${aGrpc} | hex:000000000308
POST ${paths.list} | ${aGrpc} | hex:0200000000
POST ${paths.list} | content-type: application/grpc+json | hex:00000000017b
POST ${paths.list} | content-type: application/grpc-web+json | hex:00000000017b
POST ${paths.list} | ${aGrpc} | frame:ff
POST ${paths.list} | ${aGrpc} | packed:0801
POST ${paths.list} | ${aGrpc}; grpc-encoding: gzip | packed:0801
POST ${paths.list} | ${aGrpc}; grpc-encoding: gzip | hex:010000000101
POST ${paths.list} | ${aGrpc}; grpc-encoding: gzip | frame:0801
POST ${paths.list} | ${aGrpc}; grpc-encoding: snappy | frame:
POST ${paths.list} | ${aGrpc}; grpc-accept-encoding: gzip | frame:0801
POST ${paths.list} | ${aGrpc}; :authority: elsewhere.example | frame:
POST ${paths.create} | ${aGrpc}; grpc-encoding: gzip | packed:${"00".repeat(70_000)}
POST ${paths.create} | ${aGrpc} | frame:${"00".repeat(70_000)}
POST ${paths.create} | ${aGrpc}; content-length: 70005 | frame:${"00".repeat(70_000)}
POST ${paths.create} | content-type: application/grpc-web; content-length: 70005 | frame:${"00".repeat(70_000)}
POST ${paths.create} | ${aGrpc}; idempotency-key: ${requestId} | frame:
POST ${paths.list} | content-type: application/grpc+proto | frame:0801
POST ${paths.list} | content-type: application/grpc+thrift | frame:
POST ${paths.list} | content-type: application/GRPC | frame:
POST ${paths.list} | content-type: application/grpc-web | frame:0801
POST ${paths.list} | content-type: text/plain | frame:
POST ${paths.list} |  | frame:
POST ${paths.list} | ${aJson} | {}
GET ${rest}
POST ${rest} | ${aJson}; idempotency-key: ${requestId} | ${record}
GET /healthz
GET /openapi.json
GET /nothing
POST ${paths.check} | ${aGrpc} | frame:
POST ${paths.check} | ${aGrpc} | frame:0a1b${Buffer.from("investor.v1.InvestorService").toString("hex")}
POST ${paths.check} | ${aGrpc} | frame:0a0178
POST ${paths.check} | ${aGrpc} | frame:${"00".repeat(70_000)}
POST ${health}/List | ${aGrpc} | frame:
POST ${paths.watch} | ${aGrpc}; grpc-timeout: 2S | frame:
POST ${paths.reflect} | ${aGrpc} | frame:3a00
POST ${paths.reflect} | content-type: application/grpc-web+proto; grpc-timeout: x | frame:3a00
POST ${paths.reflect} | ${aGrpc} | frame:2215${Buffer.from("grpc.health.v1.Health").toString("hex")}
POST ${paths.reflect} | ${aGrpc} | frame:220178
POST ${paths.reflect} | ${aGrpc}
POST ${paths.reflect} | ${aGrpc} | frame:ff
POST ${paths.reflect.replace("v1", "v1alpha")} | ${aGrpc} | frame:3a00
`;

/** The same over TLS. */
export const secure = `
GET /healthz
GET /nothing
GET ${rest}/${id}
PUT ${rest}
POST ${rest} | ${aJson}; idempotency-key: ${requestId} | ${record}
POST ${rest} | ${aJson}; idempotency-key: ${requestId}; expect: 100-continue | ${record}
POST ${paths.get} | ${aJson} | {"id":"${id}"}
POST ${paths.get} | content-type: application/grpc-web+json | hex:0000000002${Buffer.from("{}").toString("hex")}
POST ${paths.list} | ${aGrpc} | frame:0801
POST ${paths.list} | content-type: application/grpc+json | hex:0000000002${Buffer.from("{}").toString("hex")}
GET ${paths.list}?connect=v1&encoding=json&message=%7B%7D
`;

/** The same of a web page, to a service that lets those of one origin call. */
export const pages = ["https://a.example", "https://b.example"]
  .map(
    (origin) => `
OPTIONS ${rest} | origin: ${origin}; access-control-request-method: POST
OPTIONS ${paths.list} | origin: ${origin}; access-control-request-method: POST; access-control-request-headers: a
OPTIONS ${rest} | origin: ${origin}
GET ${rest} | origin: ${origin}
POST ${paths.list} | origin: ${origin}; ${aJson} | {}
GET /nothing | origin: ${origin}
`,
  )
  .join("");

/** What is open to all, and what is not. */
export const open = `
GET /healthz
GET /readyz
GET /openapi.json
GET /
GET /metrics
GET /nothing
POST ${paths.check} | ${aJson} | {}
`;

/** The same of HTTP/2. */
export const check = `POST ${paths.check} | ${aGrpc} | frame:`;

/** What is not HTTP/1.1, or not quite. */
export const bytes: Record<string, string | Uint8Array> = {
  nonsense: "nonsense\r\n\r\n",
  "no Host": `GET ${rest} HTTP/1.1\r\n\r\n`,
  "a Host that opens a bracket": http1("GET", rest, { host: "[" }),
  "a Host that opens a bracket, to an RPC": http1("GET", `${paths.list}?a`, { host: "[" }),
  "HTTP/1.0": "GET /healthz HTTP/1.0\r\n\r\n",
  "two lengths": `GET ${rest} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}`,
  "a bad chunk": `POST ${rest} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n`,
  "a target without a host": "GET http:// HTTP/1.1\r\nhost: localhost\r\n\r\n",
  "the beginning of TLS": Buffer.from([0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0, 13, 10, 13, 10]),
};

/** Reads requests, each with its line. */
export function toRequests(text: string): [line: string, sent: Sent][] {
  const lines = text.split("\n").filter((line) => line !== "");
  return lines.map((line) => {
    const [request = "", fields = "", ...body] = line.split(" | ");
    const [method = "", path = ""] = request.split(" ");
    const headers = fields.split("; ").map((field) => /^(:?[^:]+): ?(.*)$/.exec(field)?.slice(1));
    return [
      brief(line),
      {
        ...{ method, path, body: toBody(body.join(" | ")) },
        headers: Object.fromEntries(headers.filter((each) => each !== undefined)),
      },
    ];
  });
}

/** A body: its text; bytes, a message of gRPC or a packed one, in hexadecimal; or a text to pack. */
function toBody(text: string): Buffer {
  const [, kind, value = ""] = /^(hex|frame|packed|gzip):(.*)$/.exec(text) ?? [];
  const decoded = Buffer.from(value, "hex");
  if (kind === "hex") return decoded;
  if (kind === "frame") return frame(decoded);
  if (kind === "packed") return frame(gzipSync(decoded), true);
  return kind === "gzip" ? gzipSync(value) : Buffer.from(text);
}

/** A text by which a call is found in the record. */
function brief(text: string): string {
  return text.length > 180 ? `${text.slice(0, 160)}… of ${text.length}` : text;
}
