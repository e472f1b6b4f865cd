/** What holds for a call by every protocol, whichever connection it comes on. */
import { type ClientHttp2Session, constants } from "node:http2";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { pino } from "pino";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { CreateInvestorRequestSchema, InvestorSchema } from "../gen/investor/v1/investor_pb.js";
import type { EngineOptions } from "./support/engine.ts";
import { type Methods, serveMethods } from "./support/in-process.ts";
import { frame, rawConnection } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask, waitFor } from "./support/service.ts";
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
  /** The header of its client's timeout, its unit for milliseconds, and the longest that it can be. */
  timeout?: { header: string; unit: string; longest: string };
}

const connectTimeout = { header: "connect-timeout-ms", unit: "", longest: "9999999999" };
const grpcTimeout = { header: "grpc-timeout", unit: "m", longest: "99999999H" };
const form = (type: string, body: string, timeout: typeof grpcTimeout): Form => {
  const headers = { "content-type": type };
  return { path: rpc, headers, body, timeout };
};

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
const kinds = [
  ["HTTP/1.1", ofHttp1],
  ["HTTP/2", ofHttp2],
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
    const cases = kinds.flatMap(([kind, forms]) =>
      Object.entries<Form>(forms).map(([name, form]) => ({ name, kind, form })),
    );
    for (let i = 0; i < cases.length; i += atOnce) {
      const tests = cases.slice(i, i + atOnce).map((each) =>
        test(each).catch((cause) => {
          throw new Error(`by ${each.name} over ${each.kind}: ${cause.message}`, { cause });
        }),
      );
      await Promise.all(tests);
    }
  });
}

/** Runs until its call is aborted. */
const hang: Methods = {
  createInvestor: (_, { signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
};

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

/** Serves methods; each call of `connect` opens a connection of the kind. */
async function serve({ kind, form }: Case, methods: Methods, options: Partial<EngineOptions> = {}) {
  const { port, gate } = await serveMethods(methods, options);
  const connect = () =>
    kind === "HTTP/1.1" ? openHttp1(port, form) : openHttp2(rawConnection(port), form);
  return { connect, gate };
}

/** Opens a connection, and returns what begins a call on it: with its headers alone. */
function openHttp1(port: number, { path, headers, body }: Form) {
  const { socket, received } = openWire(port);
  return (more: object = {}, length = body.length) => {
    const start = received().length;
    const reply = () => received().slice(start);
    socket.write(http1("POST", path, { ...headers, ...more, "content-length": length }));
    return {
      /** Sends a part of its body. */
      send: (bytes: string) => void socket.write(bytes, "latin1"),
      /** Ends its body, where nothing else tells that it is whole. */
      end() {},
      /** Whether it was asked for its body. */
      wasAsked: () => statusesIn(reply()).includes(100),
      /** How it ended: the reason of its error, or OK; empty as long as it has not. */
      outcome: () => outcomeOf(reply()),
      /** Leaves it, with its connection where that has no other way. */
      leave: () => void socket.destroy(),
    };
  };
}

type Begin = ReturnType<typeof openHttp1>;

function openHttp2(session: ClientHttp2Session, { path, headers }: Form): Begin {
  return (more = {}) => {
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
      leave: () => void stream.close(constants.NGHTTP2_CANCEL),
    };
  };
}

/** Makes a whole call, and returns how it ends. */
async function outcomeWith(begin: Begin, body: string, headers = {}): Promise<string> {
  const call = begin(headers, body.length);
  call.send(body);
  call.end();
  return waitFor(call.outcome);
}

/** Headers with a time limit of the client's. */
const limitedTo = ({ timeout }: Form, limit: string) =>
  timeout ? { [timeout.header]: limit } : {};

// A client has a second to send the rest of what was replied to.
const fewAtOnce = 5;
everywhere(
  "leaves its connection to the next one if it is too large",
  async (each) => {
    const { connect } = await serve(each, { createInvestor: () => ({ type: 1 }) });
    const begin = connect();
    const large = "x".repeat(200_000);
    for (const sent of [large.length, 120_000]) {
      const call = begin({}, large.length);
      call.send(large.slice(0, sent));
      if (sent === large.length) call.end();
      await expect.poll(call.outcome).toBe("MESSAGE_TOO_LARGE");
      call.send(large.slice(sent));
    }
    expect(await outcomeWith(begin, each.form.body)).toBe("OK");
  },
  fewAtOnce,
);

everywhere("is asked for its body if it expects that, and refused without it", async (each) => {
  const held = Promise.withResolvers<object>();
  const methods = { createInvestor: () => held.promise };
  const { connect, gate } = await serve(each, methods, { maxInFlight: 1 });
  const call = connect()({ expect: "100-Continue" });
  await expect.poll(call.wasAsked).toBe(true);
  const refused = connect()({ expect: "100-continue" });
  await expect.poll(refused.outcome).toBe("OVERLOADED");
  call.send(each.form.body);
  call.end();
  held.resolve({ type: 1 });
  await expect.poll(call.outcome).toBe("OK");
  await expect.poll(() => gate.inFlight).toBe(0);
});

everywhere("ends at the service's timeout, if its client's is longer", async (each) => {
  const { connect, gate } = await serve(each, hang, { requestTimeoutMs: 1_500 });
  const { body, timeout } = each.form;
  const longest = limitedTo(each.form, timeout?.longest ?? "");
  expect(await outcomeWith(connect(), body, longest)).toBe("DEADLINE_EXCEEDED");
  const half = connect()(longest);
  half.send(body.slice(0, 3));
  await expect.poll(half.outcome).toBe("DEADLINE_EXCEEDED");
  await expect.poll(() => gate.inFlight).toBe(0);
});

everywhere("ends at its client's timeout if that is sooner", async (each) => {
  // REST has none.
  if (!each.form.timeout) return;
  const { connect } = await serve(each, hang);
  const soon = limitedTo(each.form, `100${each.form.timeout.unit}`);
  expect(await outcomeWith(connect(), each.form.body, soon)).toBe("DEADLINE_EXCEEDED");
});

everywhere("never begins if its client gives it no time, however fast it is", async (each) => {
  if (!each.form.timeout) return;
  let begun = 0;
  const createInvestor = () => {
    begun += 1;
    return { type: 1 };
  };
  const { connect } = await serve(each, { createInvestor });
  const begin = connect();
  const none = limitedTo(each.form, `0${each.form.timeout.unit}`);
  for (let i = 0; i < 20; i += 1) {
    expect(await outcomeWith(begin, each.form.body, none)).toBe("DEADLINE_EXCEEDED");
  }
  expect(begun).toBe(0);
});

everywhere(
  "is refused with an Idempotency-Key where that does not count, unless it has a request id",
  async (each) => {
    const { body, headers } = each.form;
    const { connect } = await serve(each, { createInvestor: () => ({}) });
    const begin = connect();
    const key = { "idempotency-key": v7() };
    const isRest = each.name === "REST";
    expect(await outcomeWith(begin, body, key)).toBe(isRest ? "OK" : "MALFORMED_REQUEST");
    if (isRest) return;
    const isFramed = /grpc/.test(headers["content-type"] ?? "");
    const message = isFramed ? body.slice(5) : body;
    // Field 13 is request_id.
    const withId = message.startsWith("{")
      ? message.replace("{", '{"requestId":"a",')
      : `${message}\x6a\x01a`;
    expect(await outcomeWith(begin, isFramed ? toFrame(withId) : withId, key)).toBe("OK");
  },
);

everywhere("frees its slot when its client leaves, also while it runs", async (each) => {
  const signals: AbortSignal[] = [];
  const createInvestor: Methods["createInvestor"] = (request, context) => {
    signals.push(context.signal);
    return hang.createInvestor?.(request, context) ?? {};
  };
  const { connect, gate } = await serve(each, { createInvestor });
  for (const isWhole of [false, true]) {
    const call = connect()();
    call.send(isWhole ? each.form.body : each.form.body.slice(0, 3));
    if (isWhole) call.end();
    await expect.poll(() => gate.inFlight).toBe(1);
    await expect.poll(() => signals.length).toBe(isWhole ? 1 : 0);
    call.leave();
    await expect.poll(() => gate.inFlight).toBe(0);
  }
  expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
});

everywhere("is refused if its text is not Unicode, which stays as it is", async (each) => {
  const { body } = each.form;
  const names: string[] = [];
  const createInvestor: Methods["createInvestor"] = ({ lastName = "" }) => {
    names.push(lastName);
    return { lastName, type: 1 };
  };
  const { connect } = await serve(each, { createInvestor });
  const begin = connect();
  // As long as what they replace: invalid UTF-8 and, in JSON, half of an emoji.
  const broken = [body.replace("ug", "\xc3\x28"), body.replace("ug", "\xed\xa0")];
  if (body.includes("{")) broken.push(body.replace("stName", "\\ud800"));
  // By REST, the service itself refuses it.
  if (body.includes("{") && each.name !== "REST") broken.push(body.replace("ugusta", "\\ud800"));
  for (const text of broken) {
    expect(await outcomeWith(begin, text)).toMatch(/^(MALFORMED_REQUEST|INVALID_FIELDS)$/);
  }
  expect(await outcomeWith(begin, body)).toBe("OK");
  expect(names).toEqual(["Augusta"]);
});

everywhere("fails with an id if the service is at fault, as it is logged once", async (each) => {
  const logged: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => void logged.push(line) });
  const createInvestor = () => {
    throw new TypeError("password=hunter2");
  };
  const { connect } = await serve(each, { createInvestor }, { log });
  const outcome = await outcomeWith(connect(), each.form.body);
  expect(outcome).toMatch(/^internal error/);
  expect(logged).toEqual([expect.stringContaining("hunter2")]);
  expect(logged[0]).toContain(outcome.slice("internal error ".length));
});

it("a create may be what older clients send, or a record that was read", async () => {
  const { port } = await startInProcess();
  const post = async (type: string, body: string | Uint8Array<ArrayBuffer>) => {
    const headers = { "content-type": type };
    const reply = await ask({ port }, rpc, { method: "POST", headers, body });
    expect(reply.status).toBe(200);
    return reply;
  };
  const proto = async (body: Uint8Array<ArrayBuffer>) =>
    fromBinary(InvestorSchema, await (await post("application/proto", body)).bytes());
  const request = create(CreateInvestorRequestSchema, aCreate({ requestId: v7() }));
  // Clients of 0.5 sent empty texts, too.
  const emptyTexts = Buffer.from("\x22\0\x4a\0", "latin1");
  const older = Buffer.concat([toBinary(CreateInvestorRequestSchema, request), emptyTexts]);
  const record = await proto(older);
  expect(record).toMatchObject({ firstName: request.firstName, middleName: "", country: "gb" });
  const { $typeName: _, ...members } = request;
  const olderJson = JSON.stringify({ ...members, type: "INVESTOR_TYPE_INDIVIDUAL" });
  // The same request id.
  expect(await (await post("application/json", olderJson)).json()).toMatchObject({ id: record.id });
  const again = await proto(toBinary(InvestorSchema, record));
  expect(again).toEqual({ ...record, id: expect.not.stringMatching(record.id) });
});
