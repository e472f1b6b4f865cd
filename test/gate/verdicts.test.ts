/**
 * Whether a call has the same verdict by every protocol: random creates, reads, broken bodies and edge
 * cases by a seed, each by all of them at once. VERDICTS_MINUTES has it go on for longer.
 */

import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { text } from "node:stream/consumers";
import {
  create,
  type DescMessage,
  fromBinary,
  type MessageInitShape,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { codeFromString } from "@connectrpc/connect/protocol-connect";
import { v4, v7 } from "uuid";
import { expect, it, onTestFinished } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  type Investor,
  ListInvestorsRequestSchema,
  type ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import { codes } from "../../src/errors.ts";
import { textFields, typeNames } from "../../src/investor/investor.ts";
import { toJson } from "../../src/investor/json.ts";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { broken, createRandom, oddJson, type Random, seedOf } from "../support/random.ts";
import { frame, paths, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { institution } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";

const minutes = Number(process.env.VERDICTS_MINUTES ?? 1 / 3);
const rest = "/v1/investors";

/** How a call ended: with what, or why not. */
type Verdict = Record<string, unknown>;

type Create = MessageInitShape<typeof CreateInvestorRequestSchema>;
type List = { pageSize?: number; pageToken?: string };
type Server = Awaited<ReturnType<typeof startInProcess>>;

/** Texts on both sides of every rule. */
const texts = [
  ...["", " ", "Ada", "Łódź", "é", "e\u0301", "\u{1f600}", "\u0000", "\n", "\u007f", "\u0085"],
  ...["\u2028", "\ufeff", "\ufffd", "\uffff", '"\\/', "</script>", "null", "us", "USA", "u s"],
  ...["x".repeat(256), "x".repeat(257), "\u{1f600}".repeat(256), "\u{1f600}".repeat(257)],
];

function aCreate({ int, pick }: Random): Create {
  const changes = Array.from({ length: int(0, 3) }, () => [
    pick(textFields),
    pick([undefined, ...texts]),
  ]);
  return {
    ...institution,
    type: pick([1, 1, 2, 2, 0, 7, undefined]),
    ...Object.fromEntries(changes),
    ...pick<Create>([{}, {}, { requestId: v7() }, { requestId: v4().toUpperCase() }]),
    ...(int(0, 9) === 0 && {
      requestId: pick(["", "x", `{${v4()}}`, `${"0".repeat(8)}-0000-0000-0000-${"0".repeat(12)}`]),
    }),
  };
}

/** The same call by REST, as bytes. */
interface RestCall {
  method: string;
  path: string;
  body?: string;
  headers?: Record<string, string>;
}

function toRest({ requestId, type, ...members }: Create): RestCall {
  const name = type === undefined ? undefined : (typeNames.get(type) ?? "other");
  const key = requestId === undefined ? {} : { "idempotency-key": requestId };
  const headers = { "content-type": "application/json", ...key };
  return { method: "POST", path: rest, headers, body: JSON.stringify({ type: name, ...members }) };
}

function openCallers(server: Server) {
  const agent = new Agent({ keepAlive: true });
  onTestFinished(() => agent.destroy());
  const clients = [true, false].flatMap((useBinaryFormat) =>
    Object.entries(clientsOf(server, { useBinaryFormat })).map(
      ([name, client]) => [`${name}, ${useBinaryFormat ? "protobuf" : "JSON"}`, client] as const,
    ),
  );
  const session = rawConnection(server.grpcPort);

  async function send(call: RestCall) {
    const { body, ...options } = call;
    const req = request({ port: server.httpPort, agent, ...options }).end(body);
    const [res] = (await once(req, "response")) as [IncomingMessage];
    return {
      status: res.statusCode ?? 0,
      link: res.headers.link,
      body: JSON.parse(await text(res)),
    };
  }

  type Client = (typeof clients)[number][1];

  /** Makes a call by every protocol, and expects one verdict, which it returns. */
  async function agree<T>(
    input: unknown,
    byRpc: (client: Client) => Promise<T>,
    toValue: (output: T) => unknown,
    byRest: RestCall | undefined,
    ofRest: (reply: Awaited<ReturnType<typeof send>>) => unknown,
  ): Promise<Verdict> {
    const verdicts = clients.map(async ([name, client]): Promise<[string, Verdict]> => {
      const verdict = await byRpc(client).then(
        (output) => ({ value: toValue(output) }),
        async (error) => {
          const { code, reason, metadata, violations, message } = await failureOf(
            Promise.reject(error),
          );
          const isOfFields = reason === "INVALID_FIELDS";
          return { code, reason, metadata, violations, message: isOfFields ? "" : message };
        },
      );
      return [name, verdict];
    });
    if (byRest) {
      const reply = send(byRest).then((reply): [string, Verdict] => [
        "REST",
        reply.status === 200 ? { value: ofRest(reply) } : failureOfRest(reply.body),
      ]);
      verdicts.push(reply);
    }
    const all = await Promise.all(verdicts);
    const [[, first] = ["", {}]] = all;
    for (const [name, verdict] of all) {
      expect(verdict, `${name}, not as by ${all[0]?.[0]}: ${JSON.stringify(input)}`).toEqual(first);
    }
    return first;
  }

  /** How calls with the same bytes end by the protocols that take them: code and reason. */
  async function agreeOnBytes(path: string, kind: "proto" | "json", body: Buffer) {
    const ofGrpc = (type: string) =>
      rawCall(session, path, frame(body), { "content-type": `${type}+${kind}` });
    const byConnect = async (type: string) => {
      const headers = { "content-type": type };
      const url = `http://127.0.0.1:${server.httpPort}${path}`;
      const reply = await fetch(url, { method: "POST", headers, body });
      const bytes = Buffer.from(await reply.arrayBuffer());
      if (reply.status === 200) return { status: 0, reason: undefined };
      const { code, details = [] } = JSON.parse(String(bytes));
      const info = details.find(({ type }: { type: string }) => type.endsWith("ErrorInfo"));
      const value = Buffer.from(info?.value ?? "", "base64");
      const { reason } = fromBinary(ErrorInfoSchema, value);
      return { status: codeFromString(code), reason: reason || undefined };
    };
    const seen = {
      gRPC: await ofGrpc("application/grpc"),
      "gRPC-Web": await ofGrpc("application/grpc-web"),
      Connect: await byConnect(`application/${kind}`),
      ...(kind === "json" && {
        "Connect, odd": await byConnect("application/json; charset=utf-8"),
      }),
    };
    for (const [name, verdict] of Object.entries(seen)) {
      const of = `${name}, not as by gRPC: ${path} ${JSON.stringify(body.toString("latin1"))}`;
      expect(verdict, of).toEqual(seen.gRPC);
    }
    return seen.gRPC;
  }

  return { agree, agreeOnBytes };
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
  return {
    code: Code[codes[reason]],
    reason,
    metadata,
    violations: Object.fromEntries(violations),
    message: reason === "INVALID_FIELDS" ? "" : detail,
  };
}

const toObject = (investor: Investor) => JSON.parse(toJson(investor));
const withoutId = ({ id: _, ...content }: { id: string }) => content;

it("a call has the same verdict by every protocol", async () => {
  const server = await startInProcess();
  const { agree, agreeOnBytes } = openCallers(server);
  const random = createRandom(seedOf("verdicts"));
  const { int, pick } = random;
  const known: string[] = [];
  const tokens: string[] = [""];
  const count = { value: 0, failure: 0 };
  const note = (isGood: boolean) => {
    count[isGood ? "value" : "failure"] += 1;
  };

  async function createOne(): Promise<void> {
    const input = aCreate(random);
    const isReplay = input.requestId !== undefined;
    const normalise = isReplay ? (object: object) => object : withoutId;
    const verdict = await agree(
      input,
      (client) => client.createInvestor(input),
      (output) => {
        if (known.length < 1_000) known.push(output.id);
        return normalise(toObject(output));
      },
      toRest(input),
      ({ body }) => normalise(body),
    );
    note("value" in verdict);
  }

  async function getOne(): Promise<void> {
    const id = pick([
      ...[pick(["", ...known]), pick(["", ...known]).toUpperCase(), v7(), v4()],
      ...[pick(texts), `${v4()} `, "a/b", "..", "%00"],
    ]);
    const path = `${rest}/${encodeURIComponent(id)}`;
    const verdict = await agree(
      { id },
      (client) => client.getInvestor({ id }),
      toObject,
      // Nothing is at the path that has no id.
      id === "" ? undefined : { method: "GET", path },
      ({ body }) => body,
    );
    note("value" in verdict);
  }

  async function listOne(): Promise<void> {
    const input: Required<List> = {
      pageSize: pick([0, 1, 2, 7, 1_000, 1_001, 2 ** 31 - 1, -1, -(2 ** 31)]),
      pageToken: pick([pick(tokens), pick(tokens), "", "x", "AQ", "=", `${pick(tokens)}A`]),
    };
    const toValue = ({
      investors,
      nextPageToken,
    }: Pick<ListInvestorsResponse, "investors" | "nextPageToken">) => {
      if (nextPageToken && tokens.length < 100) tokens.push(nextPageToken);
      return { investors: investors.map(toObject), nextPageToken };
    };
    const query = new URLSearchParams({ ...input, pageSize: String(input.pageSize) });
    const verdict = await agree(
      input,
      (client) => client.listInvestors(input),
      toValue,
      { method: "GET", path: `${rest}?${query}` },
      ({ body, link }) => {
        const nextPageToken = /[?&]pageToken=([^&>]*)/.exec(String(link))?.[1] ?? "";
        return { investors: body, nextPageToken };
      },
    );
    note("value" in verdict);
  }

  async function breakOne(): Promise<void> {
    const [path, schema, init] = pick<[string, DescMessage, object]>([
      [paths.create, CreateInvestorRequestSchema, aCreate(random)],
      [paths.get, GetInvestorRequestSchema, { id: pick(["", ...known]) }],
      [paths.list, ListInvestorsRequestSchema, { pageSize: int(-1, 3), pageToken: pick(tokens) }],
    ]);
    const message = create(schema, init as never);
    const kind = pick(["proto", "json"] as const);
    const good = Buffer.from(
      kind === "proto" ? toBinary(schema, message) : toJsonString(schema, message),
    );
    const body =
      kind === "json" && int(0, 9) === 0
        ? Buffer.from(pick([...oddJson, '{"city":"a","city":null}']))
        : broken(good, random);
    note((await agreeOnBytes(path, kind, body)).status === 0);
  }

  /** A create on either side of the largest size. */
  async function edgeOne(): Promise<void> {
    const lastName = "x".repeat(int(65_000, 70_000));
    const input = create(CreateInvestorRequestSchema, { ...institution, type: 1, lastName });
    const body = Buffer.from(toBinary(CreateInvestorRequestSchema, input));
    const { reason } = await agreeOnBytes(paths.create, "proto", body);
    expect(reason).toBe(body.length > 65_536 ? "MESSAGE_TOO_LARGE" : "INVALID_FIELDS");
    note(false);
  }

  const work = [createOne, createOne, getOne, listOne, breakOne, breakOne, breakOne, edgeOne];
  const end = performance.now() + minutes * 60_000;
  while (performance.now() < end) await pick(work)();
  console.log(`verdicts: ${count.value} good, ${count.failure} bad`);
  expect(Math.min(count.value, count.failure)).toBeGreaterThan(10);
  expect(server.errors).toEqual([]);
});
