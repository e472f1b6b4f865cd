/**
 * Whether a call has the same verdict by every protocol: random creates, reads, broken bodies and edge
 * cases by a seed, each by all of them at once. VERDICTS_MINUTES has it go on for longer.
 */
import { Code, ConnectError } from "@connectrpc/connect";
import { errorFromJsonBytes } from "@connectrpc/connect/protocol-connect";
import { expect, it } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  type Investor,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { codes } from "../../src/failures.ts";
import { toJson } from "../../src/investor/json.ts";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { exchangeHttp1 } from "../support/exchange.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { type Create, createCalls, type MessageCall, toRest } from "../support/random-calls.ts";
import { frame, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { startInProcess } from "../support/server.ts";

const minutes = Number(process.env.VERDICTS_MINUTES ?? 1 / 3);

/** What calls reply: a record, or a page with the token of the next. */
interface Value {
  id?: string;
  investors?: object[];
  nextPageToken?: string;
}

/** How a call ended: with what, or why not. */
type Verdict = { value: Value } | { code: string };

const toObject = (investor: Investor): Value => JSON.parse(toJson(investor));

type Client = ReturnType<typeof clientsOf>["gRPC"];

async function verdictOfRpc(client: Client, { method, input }: MessageCall): Promise<Verdict> {
  const call =
    method === "list"
      ? client.listInvestors(input).then(({ investors, nextPageToken }) => {
          return { investors: investors.map(toObject), nextPageToken };
        })
      : (method === "get" ? client.getInvestor(input) : client.createInvestor(input)).then(
          toObject,
        );
  try {
    return { value: await call };
  } catch (error) {
    const { code, reason, metadata, violations, message } = await failureOf(Promise.reject(error));
    const isOfFields = reason === "INVALID_FIELDS";
    return { code, reason, metadata, violations, message: isOfFields ? "" : message } as Verdict;
  }
}

/** A create as plain JSON must have it: with all members, and without a request id if that is empty. */
function whole({ type, requestId, ...texts }: Create): Create {
  const members = Object.entries(texts).map(([name, text]) => [name, text ?? ""]);
  return { ...(type && { type }), ...Object.fromEntries(members), ...(requestId && { requestId }) };
}

async function verdictOfRest(port: number, call: MessageCall): Promise<Verdict> {
  const { method, input } = call;
  const sent = toRest(method === "create" ? { method, input: whole(input) } : call);
  const reply = await exchangeHttp1(port, sent);
  const body = JSON.parse(String(reply.body));
  if (reply.statuses[0] !== 200) return failureOfRest(body);
  const nextPageToken = /[?&]pageToken=([^&>]*)/.exec(reply.headers.link ?? "")?.[1] ?? "";
  return { value: method === "list" ? { investors: body, nextPageToken } : body };
}

/** A problem in the terms of the other protocols. */
function failureOfRest(problem: {
  reason: keyof typeof codes;
  detail: string;
  metadata?: object;
  errors?: { detail: string; pointer?: string; parameter?: string; header?: string }[];
}): Verdict {
  const { reason, detail, metadata = {}, errors = [] } = problem;
  const fields = [...CreateInvestorRequestSchema.fields, ...ListInvestorsRequestSchema.fields];
  const violations = errors.map(({ pointer, parameter, header, detail }) => {
    const member = pointer?.slice("#/".length) ?? parameter;
    const field = fields.find(({ jsonName }) => jsonName === member);
    return [header ? "request_id" : (field?.name ?? member), detail];
  });
  const message = reason === "INVALID_FIELDS" ? "" : detail;
  const told = { reason, metadata, violations: Object.fromEntries(violations), message };
  return { code: Code[codes[reason]], ...told } as Verdict;
}

/** The code of a call with these bytes by Connect, 0 if it succeeds, and the reason. */
async function callByConnect(port: number, path: string, type: string, body: Buffer) {
  const headers = { "content-type": type };
  const reply = await exchangeHttp1(port, { method: "POST", path, headers, body });
  if (reply.statuses[0] === 200) return { status: 0, reason: undefined };
  const error = errorFromJsonBytes(reply.body, undefined, new ConnectError("not of Connect"));
  const [info] = error.findDetails(ErrorInfoSchema);
  return { status: error.code, reason: info?.reason };
}

it("a call has the same verdict by every protocol", async () => {
  const { port, errors } = await startInProcess();
  const session = rawConnection(port);
  const clients = [true, false].flatMap((useBinaryFormat) =>
    Object.entries(clientsOf({ port }, { useBinaryFormat })).map(
      ([name, client]) => [`${name}, ${useBinaryFormat ? "protobuf" : "JSON"}`, client] as const,
    ),
  );
  const known = { ids: [] as string[], tokens: [] as string[] };
  const next = createCalls(createRandom(seedOf("verdicts")), known);

  /** Makes a call with a message, and returns whether it succeeds. */
  async function agree(call: MessageCall): Promise<boolean> {
    const { method, input } = call;
    const calling = clients.map(
      async ([name, client]): Promise<[string, Verdict]> => [
        name,
        await verdictOfRpc(client, call),
      ],
    );
    // Nothing is at the path that has no id.
    if (method !== "get" || input.id !== "")
      calling.push(verdictOfRest(port, call).then((verdict) => ["REST", verdict]));
    const [[first, expected] = ["", { code: "" }], ...others] = await Promise.all(calling);
    const value = "value" in expected ? expected.value : {};
    if (value.id && known.ids.length < 1_000) known.ids.push(value.id);
    if (value.nextPageToken && known.tokens.length < 100) known.tokens.push(value.nextPageToken);
    // Each create without a request id makes a record of its own.
    const isNew = value.id !== undefined && method === "create" && !input.requestId;
    const same = isNew ? { value: { ...value, id: expect.any(String) } } : expected;
    for (const [name, verdict] of others) {
      expect(verdict, `${name}, not as by ${first}: ${JSON.stringify(input)}`).toEqual(same);
    }
    return "value" in expected;
  }

  /** The same with bytes, by the protocols that take them. */
  async function agreeOnBytes(path: string, kind: "proto" | "json", body: Buffer) {
    const byGrpc = (type: string) =>
      rawCall(session, path, frame(body), { "content-type": `application/${type}+${kind}` });
    const expected = await byGrpc("grpc");
    const about = `not as by gRPC: ${path} ${JSON.stringify(body.toString("latin1"))}`;
    expect(await byGrpc("grpc-web"), about).toEqual(expected);
    const odd = kind === "json" ? ["application/json; charset=utf-8"] : [];
    for (const type of [`application/${kind}`, ...odd]) {
      expect(await callByConnect(port, path, type, body), `${type}, ${about}`).toEqual(expected);
    }
    if (body.length > 60_000) {
      const isTooLarge = body.length > 65_536;
      expect(expected.reason).toBe(isTooLarge ? "MESSAGE_TOO_LARGE" : "INVALID_FIELDS");
    }
    return expected.status === 0;
  }

  const count = { good: 0, bad: 0 };
  const end = performance.now() + minutes * 60_000;
  while (performance.now() < end) {
    const call = next();
    const isGood =
      call.method === "bytes"
        ? await agreeOnBytes(call.path, call.kind, call.body)
        : await agree(call);
    count[isGood ? "good" : "bad"] += 1;
  }
  console.log("verdicts:", count);
  expect(Math.min(count.good, count.bad)).toBeGreaterThan(10);
  expect(errors).toEqual([]);
});
