/** What holds for a call by every protocol, whichever connection it comes on. */
import { type ClientHttp2Session, connect as connectHttp2, constants } from "node:http2";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { pino } from "pino";
import { v7 } from "uuid";
import { beforeAll, expect, it, onTestFinished } from "vitest";
import { InvestorSchema } from "../gen/investor/v1/investor_pb.js";
import { readTls } from "../src/http/tls.ts";
import { createAuthority, writeServerFiles } from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import type { EngineOptions } from "./support/engine.ts";
import { failureOf } from "./support/errors.ts";
import { sharedFolder } from "./support/folder.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { frame, rawConnection } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { http1, openWire, statusesIn } from "./support/tcp.ts";

const rpc = "/investor.v1.InvestorService/CreateInvestor";
const json = JSON.stringify({ lastName: "Augusta" });
// Field 5 alone, which is last_name.
const proto = "\x2a\x07Augusta";
const toFrame = (message: string) => frame(Buffer.from(message)).toString("latin1");

/** How a call looks by a protocol. */
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
  "Connect with proto": form("application/proto", proto, connectTimeout),
  "Connect with a charset": form("application/json; charset=utf-8", json, connectTimeout),
  "gRPC-Web": form("application/grpc-web", toFrame(proto), grpcTimeout),
  REST: {
    path: "/v1/investors",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...institution, lastName: "Augusta" }),
  } as Form,
};
const ofHttp2 = {
  ...ofHttp1,
  gRPC: form("application/grpc", toFrame(proto), grpcTimeout),
  "gRPC with JSON": form("application/grpc+json", toFrame(json), grpcTimeout),
};
const { Connect, REST } = ofHttp2;
const kinds = [
  ["HTTP/1.1", ofHttp1],
  ["HTTP/2", ofHttp2],
  ["HTTP/2 with TLS", { Connect, REST }],
] as const;
type Kind = (typeof kinds)[number][0];

/** A call by one protocol over one kind of connection. */
interface Case {
  name: string;
  kind: Kind;
  form: Form;
}

/** Tests a rule by every protocol over every kind of connection, all or so many at once. */
function everywhere(rule: string, test: (each: Case) => Promise<void>, atOnce = 64) {
  it(`a call ${rule}`, async () => {
    const tests = kinds.flatMap(([kind, forms]) =>
      Object.entries<Form>(forms).map(([name, form]) => async () => {
        await test({ name, kind, form }).catch((cause) => {
          throw new Error(`by ${name} over ${kind}: ${cause.message}`, { cause });
        });
      }),
    );
    for (let i = 0; i < tests.length; i += atOnce) {
      await Promise.all(tests.slice(i, i + atOnce).map((each) => each()));
    }
  });
}

/** Runs until its call is aborted. */
const hang: Methods = {
  createInvestor: (_, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
};
const echo: Methods = { createInvestor: ({ lastName = "" }) => ({ lastName, type: 1 }) };

async function serve(kind: Kind, methods: Methods, options: Partial<EngineOptions> = {}) {
  const { ca, ...tls } = kind === "HTTP/2 with TLS" ? withTls : { ca: "" };
  return { ...(await serveMethods(methods, { ...tls, ...options })), ca };
}

const folder = sharedFolder();
let withTls: Awaited<ReturnType<typeof createTls>>;

// Before the tests: to make keys blocks the process while the timeouts of calls run.
beforeAll(async () => {
  withTls = await createTls();
});

async function createTls() {
  const authority = await createAuthority();
  const { TLS_CERT, TLS_KEY } = await writeServerFiles(folder, authority);
  const files = { certFile: TLS_CERT, keyFile: TLS_KEY, clientCaFile: undefined };
  return { ca: authority.ca, tls: await readTls(files, () => {}) };
}

const reasons =
  /MALFORMED_REQUEST|INVALID_FIELDS|MESSAGE_TOO_LARGE|DEADLINE_EXCEEDED|OVERLOADED|internal error \w{32}/;

/** How a call ended as its reply tells: by the reason or the id of its error, or OK. */
function outcomeOf(reply: string): string {
  const [, details = ""] = /grpc-status-details-bin\W+([\w+/]+)/.exec(reply) ?? [];
  const text = reply + Buffer.from(details, "base64");
  const [reason] = reasons.exec(text) ?? [];
  if (reason !== undefined) return reason;
  const isGood = /HTTP\/1.1 200|status":200/.test(reply) && !/grpc-status\W+[1-9]/.test(reply);
  return isGood ? "OK" : reply;
}

/** A call on the wire. */
interface WireCall {
  /** Sends a part of its body. */
  send(bytes: string): void;
  /** Ends its body, where nothing else tells that it is whole. */
  end(): void;
  /** Whether it was asked for its body. */
  wasAsked(): boolean;
  /** How it ended: the reason of its error, or OK; empty as long as it has not. */
  outcome(): string;
  /** Leaves it, with its connection where that has no other way. */
  leave(): void;
}

/** Opens a connection, and returns what begins a call on it: with its headers alone. */
function open({ port, ca }: { port: number; ca: string }, kind: Kind, form: Form) {
  if (kind === "HTTP/1.1") return openHttp1(port, form);
  const session =
    kind === "HTTP/2" ? rawConnection(port) : connectHttp2(`https://localhost:${port}`, { ca });
  onTestFinished(() => session.destroy());
  return openHttp2(session, form);
}

function openHttp1(port: number, { path, headers, body }: Form) {
  const { socket, received } = openWire(port);
  return (more: object = {}, length = body.length): WireCall => {
    const start = received().length;
    const reply = () => received().slice(start);
    socket.write(http1("POST", path, { ...headers, ...more, "content-length": length }));
    return {
      send: (bytes) => void socket.write(bytes, "latin1"),
      end() {},
      wasAsked: () => statusesIn(reply()).includes(100),
      outcome: () => outcomeOf(reply()),
      leave: () => void socket.destroy(),
    };
  };
}

function openHttp2(session: ClientHttp2Session, { path, headers }: Form) {
  return (more: object = {}): WireCall => {
    const head = { ":method": "POST", ":path": path, te: "trailers", ...headers, ...more };
    const stream = session.request(head).on("error", () => {});
    let [reply, outcome, wasAsked] = ["", "", false];
    const note = (fields: object) => {
      reply += JSON.stringify(fields);
    };
    stream.on("response", note).on("trailers", note);
    stream.on("data", (chunk) => {
      reply += chunk;
    });
    stream.on("continue", () => {
      wasAsked = true;
    });
    stream.on("close", () => {
      outcome = stream.rstCode ? `reset with ${stream.rstCode}` : outcomeOf(reply);
    });
    return {
      send: (bytes) => void stream.write(bytes, "latin1"),
      end: () => void stream.end(),
      wasAsked: () => wasAsked,
      outcome: () => outcome,
      leave: () => stream.close(constants.NGHTTP2_CANCEL),
    };
  };
}

// A few at once: a client has a second to send the rest of what was replied to.
async function leavesConnection({ kind, form }: Case): Promise<void> {
  const begin = open(await serve(kind, echo), kind, form);
  const large = "x".repeat(200_000);
  for (const sent of [large.length, 120_000]) {
    const call = begin({}, large.length);
    call.send(large.slice(0, sent));
    if (sent === large.length) call.end();
    await expect.poll(call.outcome).toBe("MESSAGE_TOO_LARGE");
    call.send(large.slice(sent));
  }
  const next = begin();
  next.send(form.body);
  next.end();
  await expect.poll(next.outcome).toBe("OK");
}
everywhere("leaves its connection to the next one if it is too large", leavesConnection, 5);

everywhere(
  "is asked for its body if it expects that, and refused without it",
  async ({ kind, form }) => {
    const held = Promise.withResolvers<void>();
    const createInvestor = async () => {
      await held.promise;
      return { type: 1 };
    };
    const server = await serve(kind, { createInvestor }, { maxInFlight: 1 });
    const call = open(server, kind, form)({ expect: "100-Continue" });
    await expect.poll(call.wasAsked).toBe(true);
    const refused = open(server, kind, form)({ expect: "100-continue" });
    await expect.poll(refused.outcome).toBe("OVERLOADED");
    call.send(form.body);
    call.end();
    held.resolve();
    await expect.poll(call.outcome).toBe("OK");
    await expect.poll(() => server.gate.inFlight).toBe(0);
  },
);

everywhere("ends at the service's timeout, if its client's is longer", async ({ kind, form }) => {
  const server = await serve(kind, hang, { requestTimeoutMs: 1_500 });
  const longest = form.timeout ? Object.fromEntries([form.timeout]) : {};
  // Once all of it is there, and if its body never comes.
  for (const isWhole of [true, false]) {
    const call = open(server, kind, form)(longest);
    call.send(isWhole ? form.body : form.body.slice(0, 3));
    if (isWhole) call.end();
    await expect.poll(call.outcome).toBe("DEADLINE_EXCEEDED");
  }
  await expect.poll(() => server.gate.inFlight).toBe(0);
});

everywhere("ends at its client's timeout if that is sooner", async ({ name, kind, form }) => {
  // REST has none.
  if (!form.timeout) return;
  const soon = { [form.timeout[0]]: name.startsWith("Connect") ? "100" : "100m" };
  const call = open(await serve(kind, hang), kind, form)(soon);
  call.send(form.body);
  call.end();
  await expect.poll(call.outcome).toBe("DEADLINE_EXCEEDED");
});

everywhere(
  "never begins if its client gives it no time, however fast it is",
  async ({ name, kind, form }) => {
    if (!form.timeout) return;
    let begun = 0;
    const createInvestor = () => {
      begun += 1;
      return { type: 1 };
    };
    const begin = open(await serve(kind, { createInvestor }), kind, form);
    const none = { [form.timeout[0]]: name.startsWith("Connect") ? "0" : "0m" };
    for (let i = 0; i < 20; i += 1) {
      const call = begin(none);
      call.send(form.body);
      call.end();
      await expect.poll(call.outcome).toBe("DEADLINE_EXCEEDED");
    }
    expect(begun).toBe(0);
  },
);

everywhere(
  "is refused with an Idempotency-Key where that does not count, unless it has a request id",
  async ({ name, kind, form }) => {
    const createInvestor: Methods["createInvestor"] = ({ requestId }) => ({ id: requestId ?? "" });
    const begin = open(await serve(kind, { createInvestor }), kind, form);
    const outcomeOf = (body: string) => {
      const call = begin({ "idempotency-key": v7() }, body.length);
      call.send(body);
      call.end();
      return expect.poll(call.outcome);
    };
    await outcomeOf(form.body).toBe(name === "REST" ? "OK" : "MALFORMED_REQUEST");
    if (name === "REST") return;
    const isFramed = /grpc/.test(form.headers["content-type"] ?? "");
    const message = isFramed ? form.body.slice(5) : form.body;
    // Field 13 is request_id.
    const withId = message.startsWith("{")
      ? message.replace("{", '{"requestId":"a",')
      : `${message}\x6a\x01a`;
    await outcomeOf(isFramed ? toFrame(withId) : withId).toBe("OK");
  },
);

everywhere("frees its slot when its client leaves, also while it runs", async ({ kind, form }) => {
  const signals: AbortSignal[] = [];
  const createInvestor: Methods["createInvestor"] = (request, context) => {
    signals.push(context.signal);
    return hang.createInvestor?.(request, context) ?? {};
  };
  const server = await serve(kind, { createInvestor });
  for (const isWhole of [false, true]) {
    const call = open(server, kind, form)();
    call.send(isWhole ? form.body : form.body.slice(0, 3));
    if (isWhole) call.end();
    await expect.poll(() => server.gate.inFlight).toBe(1);
    await expect.poll(() => signals.length).toBe(isWhole ? 1 : 0);
    call.leave();
    await expect.poll(() => server.gate.inFlight).toBe(0);
  }
  expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
});

everywhere(
  "is refused if its text is not Unicode, which stays as it is",
  async ({ name, kind, form }) => {
    const names: string[] = [];
    const createInvestor: Methods["createInvestor"] = ({ lastName = "" }) => {
      names.push(lastName);
      return { lastName, type: 1 };
    };
    const begin = open(await serve(kind, { createInvestor }), kind, form);
    const beginWith = (text: string) => {
      const call = begin();
      call.send(text);
      call.end();
      return call;
    };
    // As long as what they replace: invalid UTF-8 and, in JSON, half of an emoji.
    const broken = [form.body.replace("ug", "\xc3\x28"), form.body.replace("ug", "\xed\xa0")];
    if (form.body.includes("{")) broken.push(form.body.replace("stName", "\\ud800"));
    // By REST, the service itself refuses it.
    if (form.body.includes("{") && name !== "REST") {
      broken.push(form.body.replace("ugusta", "\\ud800"));
    }
    for (const text of broken) {
      await expect.poll(beginWith(text).outcome).toMatch(/^(MALFORMED_REQUEST|INVALID_FIELDS)$/);
    }
    await expect.poll(beginWith(form.body).outcome).toBe("OK");
    expect(names).toEqual(["Augusta"]);
  },
);

everywhere(
  "fails with an id if the service is at fault, as it is logged once",
  async ({ kind, form }) => {
    const logged: string[] = [];
    const log = pino({ level: "error" }, { write: (line) => void logged.push(line) });
    const createInvestor = () => {
      throw new TypeError("password=hunter2");
    };
    const call = open(await serve(kind, { createInvestor }, { log }), kind, form)();
    call.send(form.body);
    call.end();
    await expect.poll(call.outcome).toMatch(/^internal error/);
    expect(logged).toEqual([expect.stringContaining("hunter2")]);
    expect(logged[0]).toContain(call.outcome().slice("internal error ".length));
  },
);

it("a create may be what older clients send, or a record that was read", async () => {
  const { port } = await startInProcess();
  const url = `http://127.0.0.1:${port}${rpc}`;
  const post = async (type: string, body: Buffer | string | Uint8Array<ArrayBuffer>) => {
    const reply = await fetch(url, { method: "POST", headers: { "content-type": type }, body });
    expect(reply.status).toBe(200);
    return Buffer.from(await reply.arrayBuffer());
  };
  const { id, ...content } = fromBinary(
    InvestorSchema,
    await post("application/proto", ofVersion5),
  );
  expect(content).toMatchObject({ firstName: "Ada", middleName: "", country: "gb" });
  // The same request id.
  expect(JSON.parse(String(await post("application/json", ofVersion5Json)))).toMatchObject({ id });
  const read = toBinary(InvestorSchema, create(InvestorSchema, { id, ...content }));
  const again = fromBinary(InvestorSchema, await post("application/proto", read));
  expect(again).toEqual({ ...content, id: expect.not.stringMatching(id) });
});

/** What clients of 0.5 sent: every text, also empty ones, and a request id. */
const ofVersion5 = Buffer.from(
  "10011a0341646122002a084c6f76656c61636532123132205374204a616d6573205371756172653a0042064c6f6e646f6e" +
    "4a0052085357315920344a485a0267626202656e6a2430313938306633632d356130302d376333652d396231662d3666" +
    "31643261346238633064",
  "hex",
);
const ofVersion5Json =
  '{"type":"INVESTOR_TYPE_INDIVIDUAL","firstName":"Ada","middleName":"","lastName":"Lovelace",' +
  '"addressLine1":"12 St James Square","addressLine2":"","city":"London","state":"",' +
  '"zipCode":"SW1Y 4JH","country":"gb","language":"en",' +
  '"requestId":"01980f3c-5a00-7c3e-9b1f-6f1d2a4b8c0d"}';

// With protobuf, they do in tls.test.ts and authentication.test.ts.
it("a client by any protocol creates, gets and lists with JSON", async () => {
  const clients = clientsOf(await startInProcess(), { useBinaryFormat: false });
  for (const [protocol, client] of Object.entries(clients)) {
    const created = await client.createInvestor(aCreate({ requestId: v7() }));
    expect(await client.getInvestor({ id: created.id }), protocol).toEqual(created);
    expect((await client.listInvestors({})).investors, protocol).toContainEqual(created);
    const wrong = aCreate({ country: "USA", zipCode: "\n", requestId: "x" });
    expect(await failureOf(client.createInvestor(wrong)), protocol).toMatchObject({
      code: "InvalidArgument",
      reason: "INVALID_FIELDS",
      violations: { zip_code: expect.any(String), country: expect.any(String) },
    });
  }
});
