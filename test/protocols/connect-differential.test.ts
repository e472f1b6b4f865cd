import { once } from "node:events";
import { Agent, type IncomingMessage, type OutgoingHttpHeaders, request } from "node:http";
import { connect } from "node:net";
import { brotliDecompressSync, gunzipSync } from "node:zlib";
import { create, type DescMessage, toBinary, toJsonString } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createServiceImplSpec,
  type HandlerContext,
  type ServiceImpl,
} from "@connectrpc/connect";
import { expect, it, onTestFinished } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  type CreateInvestorRequest,
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  InvestorService,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { Call } from "../../src/calls/call.ts";
import { startEngine } from "../support/engine.ts";
import { openGate, promptly } from "../support/gate.ts";
import { createRandom } from "../support/random.ts";
import { aCreate, anInvestor } from "../support/records.ts";

const maxMessageBytes = 8_192;
const service = "/investor.v1.InvestorService";
const records = Array.from({ length: 20 }, () => anInvestor());

/** A service whose answers depend on nothing but the request. */
async function serve() {
  const taken = { unary: 0, connectNode: 0 };
  const note = (context: HandlerContext) => {
    taken[context instanceof Call ? "unary" : "connectNode"] += 1;
    const asked = context.requestHeader.get("x-ask");
    if (asked === null) return;
    context.responseHeader.set("x-answer", asked);
    context.responseHeader.append("set-cookie", "a=1");
    context.responseHeader.append("set-cookie", "b=2");
    context.responseTrailer.set("x-last", asked);
    context.responseTrailer.set("x-bytes-bin", "AQID");
  };
  const implementation: Partial<ServiceImpl<typeof InvestorService>> = {
    createInvestor(
      { $unknown: _, $typeName: __, requestId: ___, ...content }: CreateInvestorRequest,
      context,
    ) {
      note(context);
      return content as object;
    },
    getInvestor({ id }, context) {
      note(context);
      const code = Code[id as keyof typeof Code];
      if (code === undefined) return { id, lastName: String(context.timeoutMs() !== undefined) };
      const metadata = { "x-why": "because", "content-type": "text/plain" };
      const value = { reason: "TESTED", metadata: { id } };
      throw new ConnectError(`„${id}“`, code, metadata, [{ desc: ErrorInfoSchema, value }]);
    },
    listInvestors({ pageSize, pageToken }, context) {
      note(context);
      return { investors: records.slice(0, pageSize & 31), nextPageToken: pageToken };
    },
  };
  const gate = openGate(1_000, 10_000);
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, implementation)];
  const server = await startEngine({
    versions: ["http/1.1", "h2"],
    services,
    gate,
    maxMessageBytes,
  });
  onTestFinished(() => server.destroy());
  return { port: server.port, taken, gate };
}

interface Sample {
  path: string;
  headers: OutgoingHttpHeaders;
  body: Buffer;
  chunked: boolean;
}

/** Makes requests: half of them good, the others broken in some way. */
function createSamples(seed: number) {
  const { int, pick } = createRandom(seed);
  const text = () =>
    pick(["", "Ada", "Łódź", "a".repeat(300), '"\\', "\u0000", "😀", "x".repeat(9_000)]);

  const message = (): [string, DescMessage, object] =>
    pick([
      () =>
        [
          "CreateInvestor",
          CreateInvestorRequestSchema,
          aCreate({ city: text(), state: text(), requestId: pick([undefined, "", "x"]) as string }),
        ] as const,
      () =>
        [
          "GetInvestor",
          GetInvestorRequestSchema,
          { id: pick([text(), ...Object.keys(Code).filter((name) => !Number(name))]) },
        ] as const,
      () =>
        [
          "ListInvestors",
          ListInvestorsRequestSchema,
          { pageSize: pick([0, 1, 20, -1, 2 ** 31 - 1]), pageToken: text() },
        ] as const,
    ])() as unknown as [string, DescMessage, object];

  const spoil = (body: Buffer): Buffer => {
    const at = int(0, body.length);
    const spoilt = Buffer.from(body);
    return pick([
      () => body.subarray(0, at),
      () => Buffer.concat([body, body]),
      () => Buffer.concat([body.subarray(0, at), Buffer.from([int(0, 255)]), body.subarray(at)]),
      () => {
        if (at < body.length) spoilt.writeUInt8(int(0, 255), at);
        return spoilt;
      },
      () => Buffer.from(body.toString("latin1").replace(/"(\w+)":/, '"$1x":'), "latin1"),
      () => Buffer.from(pick(["null", "[]", "1", '"', "{}", "", '{"id":1}', '{"id":null}'])),
    ])();
  };

  return (): Sample => {
    const [method, schema, init] = message();
    const isJson = int(0, 1) === 0;
    const value = create(schema, init as never);
    const good = Buffer.from(isJson ? toJsonString(schema, value) : toBinary(schema, value));
    const headers: OutgoingHttpHeaders = {
      "content-type": `application/${isJson ? "json" : "proto"}`,
      ...pick([{}, { "connect-protocol-version": "1" }]),
      ...pick([{}, { "connect-timeout-ms": pick(["5000", "0000009999"]) }]),
      ...pick([
        {},
        { "accept-encoding": pick(["gzip", "br, gzip", "zstd,gzip;q=1", "identity", ""]) },
      ]),
      ...pick([{}, { "content-encoding": "identity" }]),
      ...pick([{}, { "x-ask": "question" }]),
    };
    const body = int(0, 1) === 0 ? good : spoil(good);
    return { path: `${service}/${method}`, headers, body, chunked: int(0, 4) === 0 };
  };
}

interface Answer {
  status: number | undefined;
  headers: IncomingMessage["headers"];
  body: Buffer;
}

async function send(port: number, agent: Agent, sample: Sample, query: string): Promise<Answer> {
  const { path, headers, body, chunked } = sample;
  const length = chunked ? {} : { "content-length": body.length };
  const req = request({
    port,
    agent,
    path: path + query,
    method: "POST",
    headers: { ...headers, ...length },
  });
  if (chunked && body.length > 1) req.write(body.subarray(0, body.length >> 1));
  req.end(chunked && body.length > 1 ? body.subarray(body.length >> 1) : body);
  const [res] = (await once(req, "response")) as [IncomingMessage];
  const chunks: Buffer[] = [];
  for await (const chunk of res) chunks.push(chunk);
  const unpack = { gzip: gunzipSync, br: brotliDecompressSync }[
    String(res.headers["content-encoding"])
  ];
  const packed = Buffer.concat(chunks);
  return { status: res.statusCode, headers: res.headers, body: unpack ? unpack(packed) : packed };
}

it("replies to the common form of a call as connect-node does", async () => {
  const { port, taken } = await serve();
  const agent = new Agent({ keepAlive: true });
  onTestFinished(() => agent.destroy());
  const nextSample = createSamples(20_261_121);
  const seen = { good: 0, failed: 0, malformed: 0, compressed: 0 };
  for (let i = 0; i < 4_000; i += 1) {
    const sample = nextSample();
    // A query is not the common form, and has no meaning in a POST.
    const [ours, theirs] = await Promise.all([
      send(port, agent, sample, ""),
      send(port, agent, sample, "?"),
    ]);
    const told = `${i}: ${JSON.stringify(sample.headers)} ${sample.body.toString("latin1").slice(0, 200)}`;
    const { date: _, "content-length": __, ...headers } = ours.headers;
    const { date: ___, "content-length": ____, ...theirHeaders } = theirs.headers;
    if (ours.status === 400 && ours.body.includes('"reason":"MALFORMED_REQUEST"')) {
      expect(theirs.body.toString(), told).toBe(ours.body.toString());
      seen.malformed += 1;
      continue;
    }
    expect(ours.status, told).toBe(theirs.status);
    expect(headers, told).toEqual(theirHeaders);
    expect(ours.body.toString("latin1"), told).toBe(theirs.body.toString("latin1"));
    seen[ours.status === 200 ? "good" : "failed"] += 1;
    if (ours.headers["content-encoding"]) seen.compressed += 1;
  }
  for (const [what, times] of Object.entries(seen)) expect(times, what).toBeGreaterThan(50);
  expect(taken.unary).toBeGreaterThan(1_500);
  expect(taken.connectNode).toBe(taken.unary);
});

it("lets go of a call whose body does not come, as connect-node does", async () => {
  const { port, gate } = await serve();
  for (const query of ["", "?"]) {
    const socket = connect(port, "127.0.0.1");
    let answer = "";
    socket.on("data", (data) => {
      answer += data;
    });
    socket.write(
      `POST ${service}/GetInvestor${query} HTTP/1.1\r\nhost: localhost\r\n` +
        'content-type: application/json\r\ncontent-length: 50\r\n\r\n{"id":"a"',
    );
    await expect.poll(() => gate.inFlight).toBe(1);
    socket.end();
    await once(socket, "close");
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
    expect(answer).not.toMatch(/^HTTP\/1.1 200/);
  }
});
