import { gzipSync } from "node:zlib";
import { create, toBinary } from "@bufbuild/protobuf";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { pino } from "pino";
import { expect, it, onTestFinished } from "vitest";
import {
  GetInvestorRequestSchema,
  InvestorService,
  type InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { createGate } from "../../src/calls/gate.ts";
import { createTelemetry } from "../../src/calls/telemetry.ts";
import { startEngine } from "../support/engine.ts";
import { frame } from "../support/raw-grpc.ts";

const path = `/${InvestorService.typeName}/GetInvestor`;

/** Serves on the port for HTTP, and counts calls. */
async function serve(getInvestor: ServiceImpl<typeof InvestorService>["getInvestor"]) {
  const log = pino({ level: "silent" });
  const telemetry = createTelemetry(log);
  const gate = createGate({ maxInFlight: 100, requestTimeoutMs: 1_000, telemetry, log });
  const services = [
    createServiceImplSpec<typeof InvestorService>(InvestorService, { getInvestor }),
  ];
  const server = await startEngine({ versions: ["http/1.1", "h2"], services, gate });
  onTestFinished(() => server.destroy());
  const url = `http://127.0.0.1:${server.port}${path}`;
  const counted = async () => {
    const lines = (await telemetry.metrics()).split("\n");
    return lines.flatMap((line) => /_count{.*code="(\w+)".*} \d+/.exec(line)?.[1] ?? []);
  };
  return { url, counted };
}

const message = (id: string) =>
  Buffer.from(toBinary(GetInvestorRequestSchema, create(GetInvestorRequestSchema, { id })));
const large = message("x".repeat(100_000));
const garbage = Buffer.from([0xff, 0xff, 0xff]);

type Form = [name: string, type: string, toBody: (bytes: Buffer) => Buffer, headers: object];

const forms: Form[] = [
  ["Connect", "application/proto", (bytes) => bytes, {}],
  ["Connect with gzip", "application/proto", gzipSync, { "content-encoding": "gzip" }],
  ["gRPC-Web", "application/grpc-web+proto", (bytes) => frame(bytes), {}],
  [
    "gRPC-Web with gzip",
    "application/grpc-web+proto",
    (bytes) => frame(gzipSync(bytes), true),
    { "grpc-encoding": "gzip" },
  ],
];

/** The reply as text, which of gRPC-Web has the details of an error in base64 of protobuf. */
async function post(url: string, [, type, toBody, headers]: Form, bytes: Buffer) {
  const body = new Uint8Array(toBody(bytes));
  const init = { method: "POST", headers: { "content-type": type, ...headers }, body };
  const text = await (await fetch(url, init)).text();
  const details = /grpc-status-details-bin: (\S+)/.exec(text)?.[1] ?? "";
  return `${text} ${Buffer.from(details, "base64")}`;
}

it.each(forms)(
  "by %s, what cannot be read is a mistake of the client with a reason",
  async (...form) => {
    const { url, counted } = await serve(({ id }) => ({ id }));
    expect(await post(url, form, garbage)).toContain("MALFORMED_REQUEST");
    await expect.poll(counted).toEqual(["INVALID_ARGUMENT"]);
  },
);

it.each(forms)("by %s, a message that is too large is refused with a reason", async (...form) => {
  const { url, counted } = await serve(({ id }) => ({ id }));
  expect(await post(url, form, large)).toContain("MESSAGE_TOO_LARGE");
  await expect.poll(counted).toEqual(["RESOURCE_EXHAUSTED"]);
});

it.each(forms)("by %s, nothing leaks of a reply that cannot be written", async (...form) => {
  const { url, counted } = await serve(() => ({ firstName: "secret", type: 1.5 as InvestorType }));
  const reply = await post(url, form, message("a"));
  expect(reply).toMatch(/internal( |%20)error/);
  expect(reply).toContain("INTERNAL");
  expect(reply).not.toMatch(/secret|serialize|1\.5|int32/i);
  await expect.poll(counted).toEqual(["INTERNAL"]);
});

it.each([
  ["invalid base64", "encoding=proto&base64=1&message=%21%21"],
  ["bytes that are no message", "encoding=proto&base64=1&message=____"],
  ["invalid JSON", "encoding=json&message=%7B"],
])("by GET, %s is a mistake of the client with a reason", async (_, query) => {
  const { url, counted } = await serve(({ id }) => ({ id }));
  const reply = await fetch(`${url}?connect=v1&${query}`);
  expect(reply.status).toBe(400);
  expect(await reply.text()).toContain("MALFORMED_REQUEST");
  await expect.poll(counted).toEqual(["INVALID_ARGUMENT"]);
});

it("counts what is refused before a protocol is chosen", async () => {
  const { url, counted } = await serve(({ id }) => ({ id }));
  const headers = { "content-type": "text/plain" };
  expect((await fetch(url, { method: "POST", headers, body: "x" })).status).toBe(415);
  await expect.poll(counted).toEqual(["INVALID_ARGUMENT"]);
});

it("refuses gRPC over HTTP/1.1", async () => {
  const { url } = await serve(({ id }) => ({ id }));
  const init = { method: "POST", headers: { "content-type": "application/grpc" }, body: "" };
  expect((await fetch(url, init)).status).toBe(415);
  expect((await fetch(`${url}s`, init)).status).toBe(404);
});

it.each([
  ["application/json", "504"],
  ["application/json; charset=utf-8", "504"],
  ["application/grpc-web+proto", "200"],
])("a deadline covers the body of %s", async (type, status) => {
  const { url, counted } = await serve(({ id }) => ({ id }));
  const body = new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from("{")) });
  const started = performance.now();
  const init = { method: "POST", headers: { "content-type": type }, body, duplex: "half" };
  const reply = await fetch(url, init as RequestInit);
  expect(String(reply.status)).toBe(status);
  expect(performance.now() - started).toBeGreaterThan(500);
  await expect.poll(counted).toEqual(["DEADLINE_EXCEEDED"]);
});

it.each([
  ["application/json", "connect-timeout-ms", "9999999999"],
  ["application/json; charset=utf-8", "connect-timeout-ms", "9999999999"],
  ["application/grpc-web+json", "grpc-timeout", "99999999H"],
])("a timeout of a client in %s can be longer than a timer waits", async (type, name, timeout) => {
  const { url } = await serve(({ id }) => ({ id }));
  const isFramed = type.includes("grpc");
  const json = Buffer.from('{"id":"a"}');
  const reply = await fetch(url, {
    method: "POST",
    headers: { "content-type": type, [name]: timeout },
    body: new Uint8Array(isFramed ? frame(json) : json),
  });
  expect(await reply.text()).toContain('"id":"a"');
});

it("tells of the deadline if a body proves broken after it", async () => {
  const { url, counted } = await serve(() => ({}));
  const headers = {
    "content-type": "application/proto",
    "content-encoding": "br",
    "connect-timeout-ms": "0",
  };
  for (let i = 0; i < 20; i += 1) {
    const response = await fetch(url, { method: "POST", headers, body: Buffer.from([8, 5]) });
    const { code } = (await response.json()) as { code: string };
    expect(["deadline_exceeded", "invalid_argument"]).toContain(code);
  }
  expect(await counted()).not.toContain("INTERNAL");
});
