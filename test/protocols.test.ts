/** What holds for a call by every protocol, whichever connection it comes on. */
import { once } from "node:events";
import { type ClientHttp2Session, connect as connectHttp2, constants } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  createClient,
  createServiceImplSpec,
  type ServiceImpl,
  type Transport,
} from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { CreateInvestorRequestSchema, InvestorService } from "../gen/investor/v1/investor_pb.js";
import { readTls } from "../src/http/tls.ts";
import { createAuthority, writeServerFiles } from "./support/certificates.ts";
import { type EngineOptions, startEngine } from "./support/engine.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { frame, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";

const rpc = "/investor.v1.InvestorService/CreateInvestor";
const json = JSON.stringify({ lastName: "Ada" });
const framed = frame(Buffer.from(json)).toString("latin1");

/** How a call looks by a protocol; the unusual forms are served by Connect's router. */
interface Form {
  path: string;
  headers: Record<string, string>;
  body: string;
  /** The header of its client's timeout, and the longest that it can be. */
  timeout?: [name: string, longest: string];
}

const connectTimeout: Form["timeout"] = ["connect-timeout-ms", "9999999999"];
const grpcTimeout: Form["timeout"] = ["grpc-timeout", "99999999H"];
const form = (type: string, body: string, timeout: Form["timeout"]): Form => ({
  path: rpc,
  headers: { "content-type": type },
  body,
  ...(timeout && { timeout }),
});

const ofHttp1 = {
  Connect: form("application/json", json, connectTimeout),
  "Connect, unusual": form("application/json; charset=utf-8", json, connectTimeout),
  "gRPC-Web": form("application/grpc-web+json", framed, grpcTimeout),
  REST: {
    path: "/v1/investors",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(institution),
  } as Form,
};
const ofHttp2 = {
  ...ofHttp1,
  gRPC: form("application/grpc", "\0\0\0\0\0", grpcTimeout),
  "gRPC, unusual": form("application/grpc+json", framed, grpcTimeout),
};
const { REST, ...rpcs } = ofHttp2;
const kinds = [
  ["HTTP/1.1", "http", ofHttp1],
  ["HTTP/2 on the gRPC port", "grpc", rpcs],
  ["HTTP/2 with TLS", "TLS", { Connect: ofHttp2.Connect, REST }],
] as const;
type Kind = (typeof kinds)[number][1];
const cases = kinds.flatMap(([connection, kind, forms]) =>
  Object.entries<Form>(forms).map(([name, each]) => [name, connection, kind, each] as const),
);

type Methods = Partial<ServiceImpl<typeof InvestorService>>;
/** Runs until its call is aborted. */
const hang: Methods = {
  createInvestor: (_, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
};
const echo: Methods = { createInvestor: ({ lastName = "" }) => ({ lastName, type: 1 }) };

async function serve(kind: Kind, methods: Methods, options: Partial<EngineOptions> = {}) {
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const { ca, ...authority } = await createAuthority();
  const files = await writeServerFiles(temporaryFolder(), { ca, ...authority });
  const { TLS_CERT: certFile, TLS_KEY: keyFile } = files;
  const tls = await readTls({ certFile, keyFile, clientCaFile: undefined }, () => {});
  const engine = await startEngine({
    ...{ kind: kind === "grpc" ? "grpc" : "http", services, ...options },
    ...(kind === "TLS" && { tls }),
  });
  onTestFinished(engine.destroy);
  return { ...engine, ca };
}

function openSession({ port, ca }: { port: number; ca: string }, kind: Kind) {
  if (kind === "grpc") return rawConnection(port);
  const session = connectHttp2(`https://localhost:${port}`, { ca });
  onTestFinished(() => session.destroy());
  return session;
}

function openStream(session: ClientHttp2Session, { path, headers }: Form, more: object = {}) {
  const head = { ":method": "POST", ":path": path, te: "trailers", ...headers, ...more };
  return session.request(head).on("error", () => {});
}

/** How a call ended, whatever its protocol: its status of HTTP, of gRPC where it has one, the rest. */
async function replyOf(stream: ReturnType<typeof openStream>): Promise<string> {
  let text = "";
  const note = (headers: object) => {
    text += JSON.stringify(headers);
  };
  stream.on("response", note).on("trailers", note);
  stream.on("data", (chunk) => {
    text += chunk;
  });
  await once(stream, "close");
  return `${text} reset with ${stream.rstCode}`;
}

/** How a call ended as its reply tells: by the reason of its error, or OK. */
function outcomeOf(reply: string): string {
  const [, details = ""] = /grpc-status-details-bin\W+([\w+/]+)/.exec(reply) ?? [];
  const text = reply + Buffer.from(details, "base64");
  const [reason] = /MESSAGE_TOO_LARGE|DEADLINE_EXCEEDED|OVERLOADED/.exec(text) ?? [];
  if (reason !== undefined) return reason;
  return /^HTTP\/1.1 200|status":200/.test(reply) && !/grpc-status\W+[1-9]/.test(reply)
    ? "OK"
    : reply;
}

describe.each(cases)("%s over %s", (name, _, kind, form) => {
  const { path, headers, body, timeout } = form;

  it("leaves its connection to the next call when it is too large and still being sent", async () => {
    const server = await serve(kind, echo);
    const { port } = server;
    const large = "x".repeat(200_000);
    if (kind === "http") {
      const { socket, received } = openWire(port, http1("POST", path, headers, large));
      const lastOutcome = () => outcomeOf(received().slice(received().lastIndexOf("HTTP/1.1 ")));
      await expect.poll(lastOutcome).toBe("MESSAGE_TOO_LARGE");
      const chunked = http1("POST", path, { ...headers, "transfer-encoding": "chunked" });
      socket.write(chunked.replace("content-length: 0\r\n", ""));
      socket.write(`1d4c0\r\n${large.slice(0, 120_000)}\r\n`);
      await expect.poll(() => statusesIn(received())).toHaveLength(2);
      socket.write(`0\r\n\r\n${http1("POST", path, headers, body)}`);
      await expect.poll(() => statusesIn(received())).toHaveLength(3);
      await expect.poll(lastOutcome).toBe("OK");
      return;
    }
    const session = openSession(server, kind);
    for (const end of [true, false]) {
      const stream = openStream(session, form);
      stream.write(large);
      if (end) stream.end();
      const reply = await replyOf(stream);
      expect(outcomeOf(reply)).toBe("MESSAGE_TOO_LARGE");
      expect(reply).toContain(`reset with ${constants.NGHTTP2_NO_ERROR}`);
    }
    const next = await replyOf(openStream(session, form).end(body, "latin1"));
    expect(outcomeOf(next)).toBe("OK");
  });

  it("is asked for its body once it is admitted, and not if it is refused", async () => {
    const held = Promise.withResolvers<void>();
    const hold = async () => {
      await held.promise;
      return { type: 1 };
    };
    const server = await serve(kind, { createInvestor: hold }, { maxInFlight: 1 });
    const { gate, port } = server;
    const expects = { ...headers, expect: "100-continue" };
    const head = http1("POST", path, { ...expects, "x-length": 0 }).replace(
      /content-length: 0/,
      `content-length: ${body.length}`,
    );
    if (kind === "http") {
      const { socket, received } = openWire(port, head);
      await expect.poll(received).toBe("HTTP/1.1 100 Continue\r\n\r\n");
      const refused = openWire(port, head);
      await expect.poll(() => outcomeOf(refused.received())).toBe("OVERLOADED");
      expect(statusesIn(refused.received())).not.toContain(100);
      socket.write(body, "latin1");
      held.resolve();
      await expect.poll(() => statusesIn(received())).toEqual([100, 200]);
      return;
    }
    const session = openSession(server, kind);
    const stream = openStream(session, form, { expect: "100-Continue" });
    await once(stream, "continue");
    const refused = openStream(session, form, { expect: "100-continue" });
    let wasAsked = false;
    refused.on("continue", () => {
      wasAsked = true;
    });
    expect(outcomeOf(await replyOf(refused))).toBe("OVERLOADED");
    expect(wasAsked).toBe(false);
    stream.end(body, "latin1");
    held.resolve();
    expect(outcomeOf(await replyOf(stream))).toBe("OK");
    await expect.poll(() => gate.inFlight).toBe(0);
  });

  it("ends at the service's timeout, whatever longer one its client has", async () => {
    const server = await serve(kind, hang, { requestTimeoutMs: 300 });
    const longest = timeout ? Object.fromEntries([timeout]) : {};
    // Once all of it is there, and if its body never comes.
    for (const sent of [body, body.slice(0, 3)]) {
      if (kind === "http") {
        const whole = http1("POST", path, { ...headers, ...longest }, body);
        const text = whole.slice(0, whole.length - body.length + sent.length);
        const { received } = openWire(server.port, text);
        await expect.poll(() => outcomeOf(received())).toBe("DEADLINE_EXCEEDED");
        continue;
      }
      const stream = openStream(openSession(server, kind), form, longest);
      stream.write(sent, "latin1");
      if (sent === body) stream.end();
      expect(outcomeOf(await replyOf(stream))).toBe("DEADLINE_EXCEEDED");
    }
    await expect.poll(() => server.gate.inFlight).toBe(0);
  });

  it.runIf(timeout)("ends at its client's timeout if that is sooner", async () => {
    const server = await serve(kind, hang);
    const soon = { [timeout?.[0] ?? ""]: name.startsWith("Connect") ? "100" : "100m" };
    const started = performance.now();
    if (kind === "http") {
      const whole = http1("POST", path, { ...headers, ...soon }, body);
      const { received } = openWire(server.port, whole);
      await expect.poll(() => outcomeOf(received())).toBe("DEADLINE_EXCEEDED");
    } else {
      const stream = openStream(openSession(server, kind), form, soon).end(body, "latin1");
      expect(outcomeOf(await replyOf(stream))).toBe("DEADLINE_EXCEEDED");
    }
    expect(performance.now() - started).toBeLessThan(4_000);
  });

  it("frees its slot when its client leaves, before its end and while it runs", async () => {
    const running = Promise.withResolvers<void>();
    const signals: AbortSignal[] = [];
    const note: Methods = {
      createInvestor(request, context) {
        signals.push(context.signal);
        running.resolve();
        return hang.createInvestor?.(request, context) ?? {};
      },
    };
    const server = await serve(kind, note);
    const { gate, port } = server;
    for (const sent of [body.slice(0, 3), body]) {
      const whole = http1("POST", path, headers, body);
      const text = whole.slice(0, whole.length - body.length + sent.length);
      const leave = () => {
        if (kind === "http") {
          const { socket } = openWire(port, text);
          return () => socket.destroy();
        }
        const stream = openStream(openSession(server, kind), form);
        stream.write(sent, "latin1");
        if (sent === body) stream.end();
        return () => stream.close(constants.NGHTTP2_CANCEL);
      };
      const go = leave();
      await expect.poll(() => gate.inFlight).toBe(1);
      if (sent === body) await running.promise;
      else await delay(50);
      go();
      await expect.poll(() => gate.inFlight, { timeout: 4_000 }).toBe(0);
    }
    expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
  });
});

const transports: [string, (ports: { grpcPort: number; httpPort: number }) => Transport][] = [
  ["gRPC", ({ grpcPort }) => createGrpcTransport({ baseUrl: `http://127.0.0.1:${grpcPort}` })],
  ...[true, false].flatMap((useBinaryFormat): typeof transports => {
    const codec = useBinaryFormat ? "proto" : "JSON";
    const options = ({ httpPort }: { httpPort: number }) => ({
      baseUrl: `http://127.0.0.1:${httpPort}`,
      httpVersion: "1.1" as const,
      useBinaryFormat,
    });
    return [
      [`Connect with ${codec}`, (ports) => createConnectTransport(options(ports))],
      [
        `Connect with ${codec} by GET`,
        (ports) => createConnectTransport({ ...options(ports), useHttpGet: true }),
      ],
      [`gRPC-Web with ${codec}`, (ports) => createGrpcWebTransport(options(ports))],
    ];
  }),
];

describe.each(transports)("a client by %s", (_, createTransport) => {
  it("creates, gets and lists, and learns every detail of an error", async () => {
    const server = await startInProcess();
    const client = createClient(InvestorService, createTransport(server));
    const created = await client.createInvestor(aCreate({ requestId: v7() }));
    expect(await client.getInvestor({ id: created.id })).toEqual(created);
    expect((await client.listInvestors({ pageSize: 5 })).investors).toEqual([created]);
    const wrong = aCreate({ country: "USA", zipCode: "\n", requestId: "x" });
    expect(await failureOf(client.createInvestor(wrong))).toMatchObject({
      code: "InvalidArgument",
      reason: "INVALID_FIELDS",
      violations: { zip_code: expect.any(String), country: expect.any(String) },
    });
    expect(await failureOf(client.getInvestor({ id: v7() }))).toMatchObject({
      code: "NotFound",
      reason: "INVESTOR_NOT_FOUND",
    });
    expect((await client.listInvestors({})).investors).toEqual([created]);
  });
});

describe("text that is not Unicode", () => {
  const marked = aCreate({ city: "XX" });
  const inJson = (type: string) => Buffer.from(JSON.stringify({ ...marked, type }));
  const inProto = Buffer.from(
    toBinary(CreateInvestorRequestSchema, create(CreateInvestorRequestSchema, marked)),
  );
  const enumName = "INVESTOR_TYPE_INDIVIDUAL";

  it.each<[string, string, string, Buffer, boolean]>([
    ["Connect with JSON", rpc, "application/json", inJson(enumName), false],
    ["Connect with JSON, unusual", rpc, "application/json; charset=utf-8", inJson(enumName), false],
    ["Connect with proto", rpc, "application/proto", inProto, false],
    ["gRPC-Web with JSON", rpc, "application/grpc-web+json", inJson(enumName), true],
    ["gRPC-Web with proto", rpc, "application/grpc-web+proto", inProto, true],
    ["gRPC with JSON", rpc, "application/grpc+json", inJson(enumName), true],
    ["gRPC with proto", rpc, "application/grpc", inProto, true],
    ["REST", "/v1/investors", "application/json", inJson("individual"), false],
  ])("is refused by %s, and never replaced", async (_, path, type, message, isFramed) => {
    const { grpcPort, httpPort, errors } = await startInProcess();
    const send = async (body: Uint8Array) => {
      const headers = { "content-type": type };
      const bytes = isFramed ? frame(body) : body;
      if (type.startsWith("application/grpc") && !type.includes("web")) {
        return String((await rawCall(rawConnection(grpcPort), path, bytes, headers)).status);
      }
      const init = { method: "POST", headers, body: new Uint8Array(bytes) };
      const reply = await fetch(`http://127.0.0.1:${httpPort}${path}`, init);
      return /grpc-status: (\d+)/.exec(await reply.text())?.[1] ?? String(reply.status);
    };
    // Of invalid UTF-8 and, in JSON, of an unpaired surrogate: each as long as what it replaces.
    const at = message.indexOf("XX");
    const texts = [Buffer.from([0xc3, 0x28]), Buffer.from([0xed, 0xa0])];
    const broken = texts.map((text) => {
      return Buffer.concat([message.subarray(0, at), text, message.subarray(at + 2)]);
    });
    const isJson = /json/.test(type);
    if (isJson) broken.push(Buffer.from(message.toString().replace("XX", "\\ud800")));
    for (const body of broken) expect(await send(body)).toBeOneOf(["3", "13", "400"]);
    const listed = await fetch(`http://127.0.0.1:${httpPort}/v1/investors`);
    expect(await listed.json()).toEqual([]);
    expect(await send(message)).toBeOneOf(["0", "200"]);
    expect(errors).toEqual([]);
  });
});
