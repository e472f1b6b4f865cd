/**
 * Whether a call has the same verdict by every protocol: random creates, reads, broken bodies and edge
 * cases by a seed, each by all of them at once. VERDICTS_MINUTES has it go on for longer.
 */

import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { text } from "node:stream/consumers";
import { fromBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { codeFromString } from "@connectrpc/connect/protocol-connect";
import { expect, it, onTestFinished } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  type Investor,
  ListInvestorsRequestSchema,
  type ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import { codes } from "../../src/failures.ts";
import { toJson } from "../../src/investor/json.ts";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { createRandom, seedOf } from "../support/random.ts";
import { type Create, createCalls, type RestCall, toRest } from "../support/random-calls.ts";
import { frame, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { startInProcess } from "../support/server.ts";

const minutes = Number(process.env.VERDICTS_MINUTES ?? 1 / 3);

/** How a call ended: with what, or why not. */
type Verdict = Record<string, unknown>;

type Server = Awaited<ReturnType<typeof startInProcess>>;

/** A create as plain JSON must have it: with all members, and without a request id if that is empty. */
function whole({ type, requestId, ...texts }: Create): Create {
  const members = Object.entries(texts).map(([name, text]) => [name, text ?? ""]);
  return { ...(type && { type }), ...Object.fromEntries(members), ...(requestId && { requestId }) };
}

function openCallers(server: Server) {
  const agent = new Agent({ keepAlive: true });
  onTestFinished(() => agent.destroy());
  const clients = [true, false].flatMap((useBinaryFormat) =>
    Object.entries(clientsOf(server, { useBinaryFormat })).map(
      ([name, client]) => [`${name}, ${useBinaryFormat ? "protobuf" : "JSON"}`, client] as const,
    ),
  );
  const session = rawConnection(server.port);

  async function send(call: RestCall) {
    const { body, ...options } = call;
    const req = request({ port: server.port, agent, ...options }).end(body);
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
      const url = `http://127.0.0.1:${server.port}${path}`;
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
  const known = { ids: [] as string[], tokens: [] as string[] };
  const next = createCalls(createRandom(seedOf("verdicts")), known);
  const count = { value: 0, failure: 0 };

  async function callOne(): Promise<boolean> {
    const call = next();
    if (call.method === "bytes") {
      const { path, kind, body } = call;
      const { status, reason } = await agreeOnBytes(path, kind, body);
      if (body.length > 60_000) {
        expect(reason).toBe(body.length > 65_536 ? "MESSAGE_TOO_LARGE" : "INVALID_FIELDS");
      }
      return status === 0;
    }
    const byRest = toRest(call.method === "create" ? { ...call, input: whole(call.input) } : call);
    if (call.method === "create") {
      const { input } = call;
      const isReplay = Boolean(input.requestId);
      const normalise = isReplay ? (object: object) => object : withoutId;
      const verdict = await agree(
        input,
        (client) => client.createInvestor(input),
        (output) => {
          if (known.ids.length < 1_000) known.ids.push(output.id);
          return normalise(toObject(output));
        },
        byRest,
        ({ body }) => normalise(body),
      );
      return "value" in verdict;
    }
    if (call.method === "get") {
      const { input } = call;
      const verdict = await agree(
        input,
        (client) => client.getInvestor(input),
        toObject,
        // Nothing is at the path that has no id.
        input.id === "" ? undefined : byRest,
        ({ body }) => body,
      );
      return "value" in verdict;
    }
    const { input } = call;
    const toValue = ({
      investors,
      nextPageToken,
    }: Pick<ListInvestorsResponse, "investors" | "nextPageToken">) => {
      if (nextPageToken && known.tokens.length < 100) known.tokens.push(nextPageToken);
      return { investors: investors.map(toObject), nextPageToken };
    };
    const verdict = await agree(
      input,
      (client) => client.listInvestors(input),
      toValue,
      byRest,
      ({ body, link }) => {
        const nextPageToken = /[?&]pageToken=([^&>]*)/.exec(String(link))?.[1] ?? "";
        return { investors: body, nextPageToken };
      },
    );
    return "value" in verdict;
  }

  const end = performance.now() + minutes * 60_000;
  while (performance.now() < end) count[(await callOne()) ? "value" : "failure"] += 1;
  console.log(`verdicts: ${count.value} good, ${count.failure} bad`);
  expect(Math.min(count.value, count.failure)).toBeGreaterThan(10);
  expect(server.errors).toEqual([]);
});
