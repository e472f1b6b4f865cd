/** How replies are written in the record of verdicts: one line of JSON each, the same in every run. */
import { hash } from "node:crypto";
import { gunzipSync } from "node:zlib";
import {
  createRegistry,
  type DescMessage,
  fromBinary,
  fromJson,
  type JsonObject,
  toBinary,
  toJson,
} from "@bufbuild/protobuf";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../../gen/google/rpc/status_pb.js";
import { Health } from "../../gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../../gen/grpc/reflection/v1/reflection_pb.js";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { errorDomain } from "../../src/protocols/connect-error.ts";
import type { Received } from "./exchange.ts";

/** A line, by whose `call` it is found. */
export type Line = { call: string; [name: string]: unknown };

/** Above this length of its JSON, in characters, only the beginning and a digest of a body are kept. */
const maxLength = 700;

const details = createRegistry(BadRequestSchema, ErrorInfoSchema, RetryInfoSchema);
const outputs = new Map(
  [InvestorService, Health, ServerReflection].flatMap(({ typeName, methods }) =>
    methods.map(({ name, output }): [string, DescMessage] => [`/${typeName}/${name}`, output]),
  ),
);

/** The line of a reply to what was sent to a path. */
export function toLine(call: string, path: string, received: Received): Line {
  const { statuses, headers, body, end } = received;
  const type = headers["content-type"] ?? "";
  const output = outputs.get(path.split("?")[0]?.replace("v1alpha", "v1") ?? "");
  const trailers = { ...received.trailers };
  const isFramed = type.startsWith("application/grpc");
  const content = isFramed
    ? readFrames(body, type, output, trailers)
    : withDetails(read(body, type, output));
  const status = statuses.length > 1 ? statuses : statuses[0];
  const line = {
    ...{ call, status, headers: withoutDetails(headers), body: shorten(content) },
    ...{
      trailers: withoutDetails(trailers),
      details: readDetails({ ...headers, ...trailers }),
      end,
    },
  };
  return mask(line);
}

/** The lines that differ between two records, before and after, for people. */
export function differences(recorded: Line[], seen: Line[]): string[] {
  const byCall = (lines: Line[]) => new Map(lines.map((line) => [line.call, JSON.stringify(line)]));
  const [before, now] = [byCall(recorded), byCall(seen)];
  const calls = new Set([...before.keys(), ...now.keys()]);
  return [...calls]
    .filter((call) => before.get(call) !== now.get(call))
    .map((call) => `was ${before.get(call)}, is ${now.get(call)}`);
}

/** A body as JSON, if nothing is lost by that; else its text. */
function read(body: Buffer, type: string, output: DescMessage | undefined): unknown {
  if (body.length === 0) return undefined;
  if (type.includes("json")) {
    const text = String(body);
    const value = JSON.parse(text);
    return JSON.stringify(value) === text ? value : text;
  }
  if (!output || !/proto|grpc/.test(type)) return body.toString("latin1");
  const message = fromBinary(output, body);
  const isSame = Buffer.from(toBinary(output, message)).equals(body);
  return isSame ? toJson(output, message, { registry: details }) : body.toString("hex");
}

/** The messages in a body of gRPC; what gRPC-Web has at its end goes to the trailers. */
function readFrames(
  body: Buffer,
  type: string,
  output: DescMessage | undefined,
  trailers: Record<string, string>,
): unknown[] | undefined {
  const messages: unknown[] = [];
  for (let at = 0; at < body.length; ) {
    const flags = body.readUInt8(at);
    const start = at + 5;
    at = start + body.readUInt32BE(at + 1);
    const bytes = body.subarray(start, at);
    if (flags === 0x80) {
      for (const [, name = "", value = ""] of String(bytes).matchAll(/(.+?): (.*)\r\n/g)) {
        trailers[name] = value;
      }
    } else if (flags === 0) messages.push(read(bytes, type, output) ?? {});
    else messages.push({ flags, unpacked: read(gunzipSync(bytes), type, output) });
  }
  return messages.length > 0 ? messages : undefined;
}

function shorten(content: unknown): unknown {
  const text = JSON.stringify(mask({ content }).content) ?? "";
  if (text.length <= maxLength) return content;
  return {
    start: text.slice(0, 100),
    length: text.length,
    sha256: hash("sha256", text).slice(0, 16),
  };
}

const detailsName = "grpc-status-details-bin";

function withoutDetails({ [detailsName]: _, ...fields }: Record<string, string>) {
  return Object.keys(fields).length > 0 ? fields : undefined;
}

/** The details of a failure by gRPC; its code and message are there once more. */
function readDetails(fields: Record<string, string>): unknown {
  const bytes = Buffer.from(fields[detailsName] ?? "", "base64");
  if (bytes.length === 0) return undefined;
  const { code, message, details: all } = fromBinary(StatusSchema, bytes);
  const isSame =
    String(code) === fields["grpc-status"] &&
    message === decodeURIComponent(fields["grpc-message"] ?? "");
  const list = all.map(({ typeUrl, value }) => readDetail(typeUrl.split("/")[1] ?? "", value));
  return isSame ? list : { code, message, list };
}

/** The same in a body of Connect, which says it in two ways. */
function withDetails(body: unknown): unknown {
  const { details: all, ...rest } = Object(body) as { details?: unknown };
  if (!Array.isArray(all)) return body;
  const list = all.map(({ type, value, debug }) => {
    const bytes = Buffer.from(value, "base64");
    const desc = details.getMessage(type);
    const isSame = desc && Buffer.from(toBinary(desc, fromJson(desc, debug))).equals(bytes);
    return { ...readDetail(type, bytes), ...(!isSame && { debug }) };
  });
  return { ...rest, details: list };
}

/** A detail by the short name of its type; errors are in our domain unless they say another. */
function readDetail(type: string, bytes: Uint8Array): JsonObject {
  const desc = details.getMessage(type);
  const detail = desc ? (toJson(desc, fromBinary(desc, bytes)) as JsonObject) : {};
  if (detail.domain === errorDomain) delete detail.domain;
  return { [type.replace("google.rpc.", "")]: detail };
}

/** Replaces what differs from run to run: ids that the service has made up, also in tokens of pages. */
function mask<T>(value: T): T {
  const text = JSON.stringify(value)
    .replaceAll(/(?<![\w-])AQ[\w-]{21}(?![\w-])/g, (token) => {
      const hex = Buffer.from(token, "base64url").toString("hex", 1);
      return `<page after ${hex.replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")}>`;
    })
    .replaceAll(/01[9a-f][0-9a-f]{5}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/gi, "<id>")
    .replaceAll(/(?<=error(?: |%20)|"id":")[0-9a-f]{32}/g, "<error id>");
  return JSON.parse(text);
}
