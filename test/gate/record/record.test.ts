/**
 * What the service replies on the wire, compared with the record of it in record.ndjson: every reason by
 * every protocol, and what is no call. The first line of that file says how it is renewed.
 */
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:http2";
import { expect, it, onTestFinished } from "vitest";
import { encodePageToken } from "../../../src/investor/paging.ts";
import { toConnectError } from "../../../src/protocols/connect-error.ts";
import { failures } from "../../service/failures.ts";
import { createAuthority, writeServerFlags } from "../../support/certificates.ts";
import type { Address } from "../../support/clients.ts";
import {
  exchangeBytes,
  exchangeHttp1,
  exchangeHttp2,
  type Received,
  type Sent,
} from "../../support/exchange.ts";
import { temporaryFile, temporaryFolder } from "../../support/folder.ts";
import { serveMethods } from "../../support/in-process.ts";
import { startIssuer } from "../../support/issuer.ts";
import { type Create, encode, type MessageCall, toRest } from "../../support/random-calls.ts";
import { frame, openCall, paths, rawConnection } from "../../support/raw-grpc.ts";
import { differences, type Line, toLine } from "../../support/record-lines.ts";
import { institution, textOfAll } from "../../support/records.ts";
import { startInProcess } from "../../support/server.ts";
import {
  createBody,
  lockDatabase,
  startService,
  storeWrong,
  untilInFlight,
  untilWritten,
} from "../../support/service.ts";
import {
  bytes,
  check,
  id,
  open,
  pages,
  requestId,
  requests,
  rest,
  secure,
  streams,
  toRequests,
} from "./requests.ts";

const file = new URL("record.ndjson", import.meta.url);
const about =
  "What the service replies, one call a line. RECORD=1 npm run test:gate -- test/gate/record renews it; name every line that changes in the commit that changes it.";

const secondId = "7d0c4b1a-2f3e-4d5c-9b8a-112233445566";
const thirdId = "0c4b1a7d-3e2f-4c5d-8a9b-665544332211";
const content = { ...institution, type: 2 as const };

const aCreate = (changes: Create = {}) =>
  ({ method: "create", input: { ...content, requestId, ...changes } }) as const;
const aGet = (id: string) => ({ method: "get", input: { id } }) as const;
const aList = (pageSize: number, pageToken = "") =>
  ({ method: "list", input: { pageSize, pageToken } }) as const;
const list: MessageCall = { method: "list", input: {} };

/** How a call is sent by a protocol. */
interface Form {
  http: 1 | 2;
  /** Undefined for a call that it cannot send. */
  toSent(call: MessageCall): Sent | undefined;
}

function post(http: 1 | 2, type: string): Form {
  return {
    http,
    toSent(call) {
      const message = encode(call, type.includes("json"));
      const body = type.startsWith("application/grpc") ? frame(message) : message;
      return { method: "POST", path: paths[call.method], headers: { "content-type": type }, body };
    },
  };
}

function get(query: string, encoding: "utf8" | "base64url"): Form {
  return {
    http: 1,
    toSent(call) {
      if (call.method === "create") return undefined;
      const message = encode(call, query.includes("json")).toString(encoding);
      const path = `${paths[call.method]}?connect=v1&${query}&message=${encodeURIComponent(message)}`;
      return { method: "GET", path, headers: {}, body: Buffer.alloc(0) };
    },
  };
}

const forms: Record<string, Form> = {
  gRPC: post(2, "application/grpc"),
  "gRPC, JSON": post(2, "application/grpc+json"),
  "gRPC-Web": post(1, "application/grpc-web"),
  "gRPC-Web, JSON": post(1, "application/grpc-web+json"),
  Connect: post(1, "application/proto"),
  "Connect, JSON": post(1, "application/json"),
  "Connect, JSON with a charset": post(1, "application/json; charset=utf-8"),
  "Connect by GET": get("encoding=proto&base64=1", "base64url"),
  "Connect by GET, JSON": get("encoding=json", "utf8"),
  REST: { http: 1, toSent: toRest },
};

/** By every protocol, in this order, on one service. */
const calls: Record<string, MessageCall> = {
  "a create": aCreate(),
  "its content again": aCreate({ requestId: requestId.toUpperCase() }),
  "its request id, other content": aCreate({ city: "Shelbyville" }),
  "another create": aCreate({ type: 1, requestId: secondId, firstName: "Łódź \u{1f600}" }),
  "a create of nothing": { method: "create", input: {} },
  "a create that breaks every rule": {
    method: "create",
    input: {
      ...{ type: 7 as number, requestId: "x", firstName: "a\u0000", middleName: "x".repeat(257) },
      ...{ country: "USA", language: "english", city: "\u0085" },
    },
  },
  "a create of type 0": aCreate({ type: 0 }),
  "a create that is too large": aCreate({ lastName: "x".repeat(65_536) }),
  "a get": aGet(id),
  "a get in upper case": aGet(id.toUpperCase()),
  "a get of no record": aGet(secondId),
  "a get of no UUID": aGet("x y"),
  "a get of nothing": aGet(""),
  "a list": list,
  "a list of a page": aList(1),
  "a list of the page after": aList(1, encodePageToken(id)),
  "a list of more than a page can have": aList(2_000),
  "a list of less than none": aList(-1),
  "a list by a token of nobody": aList(0, "AQ"),
  "a list that breaks every rule": aList(-(2 ** 31), "x"),
};

const withoutId: MessageCall = { method: "create", input: content };
const noTime = { "grpc-timeout": "0n", "connect-timeout-ms": "0" };
const oddTime = { "grpc-timeout": "soon", "connect-timeout-ms": "soon" };

/** The same, with more headers. */
const withHeaders: Record<string, [call: MessageCall, headers: Record<string, string>]> = {
  "a get in no time": [aGet(id), noTime],
  "a create in no time": [aCreate({ city: "Shelbyville" }), noTime],
  "a get in a time of another format": [aGet(id), oddTime],
  "a create with an Idempotency-Key": [withoutId, { "idempotency-key": requestId }],
  "a large create": [aCreate({ ...textOfAll("x".repeat(256)), requestId: thirdId }), {}],
  "a list that may be packed": [
    list,
    { "accept-encoding": "gzip", "grpc-accept-encoding": "gzip" },
  ],
};

const tokens = `
full   t0ken-of-the-orders
reader t0ken-of-reports investors:read
none   t0ken-of-scraper metrics
`;

const by = (authorization: string) => ({ authorization });

/** Calls where these tokens are known. */
const withCredentials: typeof withHeaders = {
  "a create with no credentials": [aCreate(), {}],
  "a list with an unknown token": [list, by("Bearer t0ken-of-nobody")],
  "a get with another scheme": [aGet(id), by("Basic dXNlcjpwYXNz")],
  "a create with a token to read": [aCreate(), by("Bearer t0ken-of-reports")],
  "a list with a token for metrics": [list, by("Bearer t0ken-of-scraper")],
  "a create with a token for all": [aCreate(), by("bearer t0ken-of-the-orders")],
};

/** What other versions of the service have otherwise. */
const changing = ["/openapi.json", "/metrics", "/"];

/** Makes calls of services, and keeps the lines of their replies. */
function createRecorder() {
  const lines: Line[] = [];

  function note(call: string, path: string, reply: Received): void {
    const { "content-length": _, etag: __, ...headers } = reply.headers;
    const isChanging = changing.includes(path) && reply.statuses[0] === 200;
    const kept = isChanging ? { ...reply, headers, body: Buffer.alloc(0) } : reply;
    lines.push(toLine(call, path, kept));
  }

  /** Makes the calls of one service. */
  function on({ port }: Address, session = rawConnection(port)) {
    const send = (http: 1 | 2, sent: Sent) =>
      http === 1 ? exchangeHttp1(port, sent) : exchangeHttp2(session, sent);

    /** Makes a call by every protocol that can, with more headers or as half a request. */
    async function byAll(
      name: string,
      call: MessageCall,
      { headers = {}, isHalf = false, isAtOnce = false } = {},
    ): Promise<void> {
      const replies: [form: string, path: string, reply: Promise<Received>][] = [];
      for (const [form, { http, toSent }] of Object.entries(forms)) {
        const sent = toSent(call);
        if (sent === undefined) continue;
        const reply = send(http, { ...sent, isHalf, headers: { ...sent.headers, ...headers } });
        if (!isAtOnce) await reply;
        replies.push([form, sent.path, reply]);
      }
      for (const [form, path, reply] of replies) note(`${name}, by ${form}`, path, await reply);
    }

    async function byText(http: 1 | 2, text: string, before = ""): Promise<void> {
      const version = http === 1 ? "" : "HTTP/2 ";
      for (const [line, sent] of toRequests(text)) {
        note(before + version + line, sent.path, await send(http, sent));
      }
    }

    async function byBytes(texts: Record<string, string | Uint8Array>): Promise<void> {
      for (const [name, text] of Object.entries(texts)) {
        note(name, "", await exchangeBytes(port, text));
      }
    }
    return { session, byAll, byText, byBytes };
  }
  return { lines, on };
}

type Recorder = ReturnType<typeof createRecorder>;

async function recordCalls({ on }: Recorder): Promise<void> {
  const service = await startInProcess();
  const { byAll, byText, byBytes } = on(service);
  for (const [name, call] of Object.entries(calls)) await byAll(name, call);
  for (const [name, [call, headers]] of Object.entries(withHeaders)) {
    await byAll(name, call, { headers });
  }
  await byText(1, requests);
  await byBytes(bytes);
  await byText(2, streams);
  await byAll("a create without a request id", withoutId);
  await byAll("a create with an empty request id", aCreate({ requestId: "" }));
  const wrong = storeWrong(service);
  await byAll("a get of a stored record that is none", aGet(wrong));
  await byAll("a list with a stored record that is none", aList(100));
}

async function recordCredentials({ on }: Recorder): Promise<void> {
  const flags = { "--auth-tokens-file": temporaryFile(tokens) };
  const { byAll, byText } = on(await startInProcess(flags));
  for (const [name, [call, headers]] of Object.entries(withCredentials)) {
    await byAll(name, call, { headers });
  }
  await byText(1, open, "without a token: ");
  await byText(1, "GET /metrics | authorization: Bearer t0ken-of-scraper");
  const issuer = await startIssuer();
  issuer.isAvailable = false;
  const oidc = { "--oidc-issuer": issuer.url, "--oidc-audience": "investors" };
  const headers = by(`Bearer ${await issuer.sign()}`);
  await on(await startInProcess(oidc)).byAll("a list while the issuer is down", list, { headers });
}

/** Calls over TLS, where the connection may say who calls. */
async function recordTls({ on }: Recorder): Promise<void> {
  const authority = await createAuthority();
  const flags = await writeServerFlags(temporaryFolder(), authority);
  const clients = { "--tls-client-ca": temporaryFile(authority.ca) };
  const service = await startInProcess({ ...flags, ...clients });
  const { cert, key } = await authority.sign("backend.example");
  for (const [name, own] of [
    ["without a certificate", {}],
    ["with a certificate", { cert, key }],
  ] as const) {
    const session = connect(`https://localhost:${service.port}`, { ca: authority.ca, ...own });
    onTestFinished(() => session.destroy());
    await on(service, session).byText(2, secure, `TLS ${name}: `);
  }
}

async function recordTimesAndLimits({ on }: Recorder): Promise<void> {
  const late = on(await startInProcess({ "--request-timeout": "1s" }));
  await late.byAll("half a create", aCreate(), { isHalf: true, isAtOnce: true });
  await late.byBytes({ "half a head": "GET /healthz HTTP/1.1\r\nhost: localhost\r\n" });
  const flags = { "--max-in-flight": "1", "--request-timeout": "10m" };
  const full = await startInProcess(flags);
  const { byAll, byText, session } = on(full);
  const release = lockDatabase(full);
  const first = openCall(session, paths.create).resume().end(createBody());
  await untilInFlight(full, 1);
  await byAll("a create beside another, of which there may be one", aCreate());
  await byAll("a list beside a create, of which there may be one", list);
  await byText(1, open, "beside a create: ");
  release();
  await once(first, "close");
  const locked = await startInProcess({ "--request-timeout": "10m" });
  lockDatabase(locked);
  await on(locked).byAll("a create on a locked file", aCreate(), { isAtOnce: true });
}

async function recordShutdown({ on }: Recorder): Promise<void> {
  const service = await startService({ DRAIN_DELAY: "60s" });
  service.child.kill();
  await untilWritten(service, "shutting down");
  const { byText } = on(service);
  await byText(1, open, "in the drain delay: ");
  await byText(2, check, "in the drain delay: ");
}

/** Failures that no request provokes at will, as the service makes them. */
async function recordMade({ on }: Recorder): Promise<void> {
  for (const error of [...failures.OUTCOME_UNKNOWN, ...failures.CANCELLED]) {
    const createInvestor = () => {
      throw error;
    };
    const { byAll } = on(await serveMethods({ createInvestor }, {}));
    await byAll(`a create that fails: ${toConnectError(error).message}`, aCreate());
  }
}

async function recordPages({ on }: Recorder): Promise<void> {
  const flags = { "--host": "0.0.0.0", "--allow-insecure": "true" };
  const { byText } = on(await startInProcess({ ...flags, "--cors-origin": "https://a.example" }));
  await byText(1, pages);
  await byText(1, `GET ${rest} | host: elsewhere.example`, "any host: ");
}

it("every call is replied to as in the record", async () => {
  const recorder = createRecorder();
  const { lines } = recorder;
  await recordCalls(recorder);
  await recordCredentials(recorder);
  await recordTls(recorder);
  await recordTimesAndLimits(recorder);
  await recordShutdown(recorder);
  await recordMade(recorder);
  await recordPages(recorder);
  const names = lines.map(({ call }) => call);
  expect(names.filter((name, i) => names.indexOf(name) !== i)).toEqual([]);
  if (process.env.RECORD) {
    const text = [{ about }, ...lines].map((line) => JSON.stringify(line)).join("\n");
    writeFileSync(file, `${text}\n`);
  }
  const [, ...recorded] = readFileSync(file, "utf8").trimEnd().split("\n");
  const parsed = recorded.map((line): Line => JSON.parse(line));
  expect(differences(parsed, lines)).toEqual([]);
});
