import { once } from "node:events";
import {
  type ClientHttp2Session,
  connect,
  type OutgoingHttpHeaders,
  type Settings,
} from "node:http2";
import { setImmediate } from "node:timers/promises";
import { fromBinary } from "@bufbuild/protobuf";
import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { expect, onTestFinished } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../gen/google/rpc/status_pb.js";

export const paths = {
  create: "/investor.v1.InvestorService/CreateInvestor",
  get: "/investor.v1.InvestorService/GetInvestor",
  list: "/investor.v1.InvestorService/ListInvestors",
  check: "/grpc.health.v1.Health/Check",
  watch: "/grpc.health.v1.Health/Watch",
  reflect: "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
};

/** Messages: without a field; for as much as a page can have; for the names of all services. */
export const messages = {
  empty: frame(Buffer.alloc(0)),
  fullPage: frame(Buffer.from([8, 0xe8, 7])),
  listServices: frame(Buffer.from([0x3a, 0])),
};

/** A connection that speaks HTTP/2 and knows nothing of gRPC. */
export function rawConnection(port: number, settings: Settings = {}): ClientHttp2Session {
  const session = connect(`http://127.0.0.1:${port}`, { settings });
  session.on("error", () => {});
  onTestFinished(() => session.destroy());
  return session;
}

/** Opens a stream with the headers of a gRPC call. */
export function openCall(session: ClientHttp2Session, path: string, headers = {}) {
  const all: OutgoingHttpHeaders = {
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc",
    te: "trailers",
    ...headers,
  };
  return session.request(all).on("error", () => {});
}

/** Sends a body as it is, and tells how the call ended. */
export function rawCall(session: ClientHttp2Session, path: string, body: Uint8Array, headers = {}) {
  return replyOf(openCall(session, path, headers).end(body));
}

/** How the call on a stream ends. */
export async function replyOf(stream: ReturnType<typeof openCall>) {
  const seen: Record<string, unknown> = {};
  stream.on("response", (headers) => Object.assign(seen, headers));
  stream.on("trailers", (headers) => Object.assign(seen, headers));
  let body = "";
  stream.on("data", (chunk) => {
    body += chunk;
  });
  await once(stream, "close");
  // Those of gRPC-Web are in the body.
  for (const [, name = "", value] of body.matchAll(/(grpc-[a-z-]+|reason): (.*)\r\n/g)) {
    seen[name] = value;
  }
  const details = seen["grpc-status-details-bin"];
  const status = fromBinary(StatusSchema, Buffer.from(String(details ?? ""), "base64"));
  const infos = status.details.map((any) => anyUnpack(any, ErrorInfoSchema));
  const reason = infos.find((info) => info !== undefined)?.reason;
  // In plain text beside the details.
  expect(seen.reason).toBe(reason);
  return { status: Number(seen["grpc-status"]), reason };
}

/** A message as gRPC frames it (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). */
export function frame(message: Uint8Array, isCompressed = false): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt8(isCompressed ? 1 : 0, 0);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

/** Waits until what was sent on a session has arrived. */
export async function untilArrived(session: ClientHttp2Session): Promise<void> {
  // A ping overtakes requests that wait for the connection, or begin in the same turn.
  if (session.connecting) await once(session, "connect");
  await setImmediate();
  await new Promise((done) => session.ping(done));
}
