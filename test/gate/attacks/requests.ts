/** Valid requests of every form, as bytes. */
import { InvestorType } from "../../../gen/investor/v1/investor_pb.js";
import {
  clientPreface,
  type Fields,
  fieldsOf,
  openStream,
  sendData,
} from "../../support/http2-frames.ts";
import { encode, type MessageCall } from "../../support/random-calls.ts";
import { frame, messages, paths } from "../../support/raw-grpc.ts";
import { institution } from "../../support/records.ts";
import { http1 as http1Text } from "../../support/tcp.ts";
import type { Hostile } from "./target.ts";

export const json = { "content-type": "application/json" };

const id = "0190a0b0-0000-7000-8000-000000000000";

/** A record whose text has a mark, as plain JSON. */
function plainJson(mark: string): string {
  return JSON.stringify({ ...institution, firstName: mark, lastName: `${mark}-2`, city: mark });
}

/** The path of each method, with its message in protobuf and in JSON. */
function messagesOf(mark: string): [path: string, binary: Buffer, json: string][] {
  const input = { ...JSON.parse(plainJson(mark)), type: InvestorType.INSTITUTION };
  const calls: MessageCall[] = [
    { method: "create", input },
    { method: "get", input: { id } },
    { method: "list", input: { pageSize: 5 } },
  ];
  return calls.map((call) => [paths[call.method], encode(call), String(encode(call, true))]);
}

/** A request of HTTP/1.1, with its length if it has a body. */
export function http1(method: string, path: string, fields: Fields, body?: Uint8Array | string) {
  const length = body === undefined ? undefined : Buffer.byteLength(body);
  const head = http1Text(method, path, { "content-length": length, ...fields });
  return Buffer.concat([Buffer.from(head, "latin1"), Buffer.from(body ?? "")]);
}

/** Requests of HTTP/1.1 of every form that the HTTP port serves. */
export function http1Requests({ credentials, mark }: Hostile): Buffer[] {
  const post = (path: string, type: string, body: Uint8Array | string, more: Fields = {}) =>
    http1("POST", path, { ...credentials, "content-type": type, ...more }, body);
  const get = (path: string, more: Fields = {}) => http1("GET", path, { ...credentials, ...more });
  const record = plainJson(mark);
  const chunks = `${record.length.toString(16)}\r\n${record}\r\n0\r\n\r\n`;
  const chunked = { ...credentials, ...json, "transfer-encoding": "chunked" };
  return [
    ...messagesOf(mark).flatMap(([path, binary, text]) => [
      post(path, "application/json", text),
      post(path, "application/json; charset=utf-8", text),
      post(path, "application/proto", binary, { "connect-timeout-ms": "1000" }),
      post(path, "application/grpc-web+proto", frame(binary), { "grpc-timeout": "1S" }),
      post(path, "application/grpc-web+json", frame(Buffer.from(text))),
      get(`${path}?connect=v1&encoding=json&message=${encodeURIComponent(text)}`),
    ]),
    post("/v1/investors", "application/json", record),
    post("/v1/investors", "application/json", record, { "idempotency-key": `"${id}"` }),
    post("/v1/investors", "application/json", record, { expect: "100-continue" }),
    Buffer.concat([http1("POST", "/v1/investors", chunked), Buffer.from(chunks)]),
    get(`/v1/investors/${id}`),
    get("/v1/investors?pageSize=2"),
    get("/v1/investors", { "accept-encoding": "gzip" }),
    get("/v1/investors", { upgrade: "h2c", connection: "upgrade" }),
    http1("HEAD", "/v1/investors", credentials),
    http1("OPTIONS", "/v1/investors", { origin: "http://localhost" }),
    ...["/metrics", "/readyz", "/openapi.json", "/nothing"].map((path) => get(path)),
  ];
}

/** The same call on many streams of HTTP/2. */
export function calls(
  count: number,
  path: string,
  fields: Fields,
  message: Uint8Array,
  isLast = false,
): Buffer[] {
  return Array.from({ length: count }, (_, i) => [
    openStream(2 * i + 1, fieldsOf(path, fields)),
    sendData(2 * i + 1, message, isLast),
  ]).flat();
}

/** The frames of a connection of HTTP/2 that makes calls of every form. */
export function http2Frames({ credentials, mark }: Hostile): Buffer[] {
  const requests: [path: string, type: string, body: Buffer][] = [
    ...messagesOf(mark).flatMap(([path, binary]): typeof requests => [
      [path, "application/grpc", frame(binary)],
      [path, "application/grpc-web+proto", frame(binary)],
      [path, "application/proto", binary],
    ]),
    ["/v1/investors", "application/json", Buffer.from(plainJson(mark))],
    [paths.check, "application/grpc", messages.empty],
    [paths.reflect, "application/grpc", messages.listServices],
  ];
  const frames = requests.flatMap(([path, type, body], i) => [
    openStream(2 * i + 1, fieldsOf(path, { "grpc-timeout": "1S", ...credentials }, type)),
    sendData(2 * i + 1, body, true),
  ]);
  return [clientPreface, ...frames];
}
