import {
  create,
  fromBinary,
  type MessageInitShape,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { Code, createClient, type Transport } from "@connectrpc/connect";
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
} from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.js";
import {
  CreateInvestorRequestSchema,
  InvestorService,
  type InvestorType,
} from "../../gen/investor/v1/investor_pb.js";
import { textFields, typeNames } from "../../src/investor.ts";
import { acceptedChanges } from "../service/rules.ts";
import { failureOf } from "../support/errors.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { listAll } from "../support/pages.ts";
import { frame, rawCall, rawConnection } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import {
  grpcClient,
  lockDatabase,
  type Service,
  startService,
  waitFor,
} from "../support/service.ts";

type Requests = {
  [M in keyof typeof InvestorService.method]: MessageInitShape<
    (typeof InvestorService.method)[M]["input"]
  >;
};

/** What a caller learns of a refused call: the reason, and which fields are wrong, in camel case. */
interface Refusal {
  reason: string | undefined;
  fields: string[];
}

/** Makes calls that must fail, one property each. */
type Caller = (call: Partial<Requests>) => Promise<Refusal>;

/** One of each kind of rule; test/service has them all. */
const refusals: [kind: string, call: Partial<Requests>, refusal: Refusal][] = [
  ["missing fields", { createInvestor: {} }, invalid("type", ...textFields)],
  ["an empty code", { createInvestor: aCreate({ country: "" }) }, invalid("country")],
  ["a code in capitals", { createInvestor: aCreate({ language: "EN" }) }, invalid("language")],
  [
    "text that is too long",
    { createInvestor: aCreate({ lastName: "\u{1F600}".repeat(257) }) },
    invalid("lastName"),
  ],
  ["a control character", { createInvestor: aCreate({ city: "\u0085" }) }, invalid("city")],
  ["an invalid type", { createInvestor: aCreate({ type: 3 as InvestorType }) }, invalid("type")],
  [
    "several fields",
    { createInvestor: aCreate({ type: 0, firstName: "\t", zipCode: "\n", requestId: "x" }) },
    invalid("type", "firstName", "zipCode", "requestId"),
  ],
  [
    "a request id that is nil",
    { createInvestor: aCreate({ requestId: "00000000-0000-0000-0000-000000000000" }) },
    invalid("requestId"),
  ],
  ["a negative page size", { listInvestors: { pageSize: -1 } }, invalid("pageSize")],
  ["a page token of others", { listInvestors: { pageToken: "x" } }, invalid("pageToken")],
  [
    "an id that names no record",
    { getInvestor: { id: v7() } },
    { reason: "INVESTOR_NOT_FOUND", fields: [] },
  ],
];

function invalid(...fields: string[]): Refusal {
  return { reason: "INVALID_FIELDS", fields };
}

const rpc =
  (createTransport: (service: Service) => Transport) =>
  (service: Service): Caller => {
    const client = createClient(InvestorService, createTransport(service));
    return async ({ createInvestor, getInvestor, listInvestors }) => {
      const { reason, violations } = await failureOf(
        createInvestor
          ? client.createInvestor(createInvestor)
          : getInvestor
            ? client.getInvestor(getInvestor)
            : client.listInvestors(listInvestors ?? {}),
      );
      const toCamel = (name: string) => name.replace(/_([a-z])/g, (_, c) => c.toUpperCase());
      return { reason, fields: Object.keys(violations).map(toCamel) };
    };
  };

const rest =
  (service: Service): Caller =>
  async ({ createInvestor, getInvestor, listInvestors }) => {
    const url = `http://127.0.0.1:${service.httpPort}/v1/investors`;
    const query = new URLSearchParams(
      Object.entries(listInvestors ?? {}).map(([name, value]): [string, string] => [
        name,
        `${value}`,
      ]),
    );
    const response = await (createInvestor
      ? fetch(url, toRest(createInvestor))
      : fetch(getInvestor ? `${url}/${getInvestor.id}` : `${url}?${query}`));
    const problem = (await response.json()) as {
      reason: string;
      errors?: Record<string, string>[];
    };
    const fields = (problem.errors ?? []).map(({ pointer, parameter, header }) =>
      header === "Idempotency-Key" ? "requestId" : (parameter ?? pointer?.slice(2) ?? ""),
    );
    return { reason: problem.reason, fields };
  };

function toRest({ requestId, type, ...texts }: Requests["createInvestor"]): RequestInit {
  return {
    method: "POST",
    headers: {
      "content-type": "application/json",
      ...(requestId !== undefined && { "idempotency-key": requestId }),
    },
    body: JSON.stringify({
      ...texts,
      ...(type !== undefined && { type: typeNames.get(type) ?? String(type) }),
    }),
  };
}

const grpcUrl = ({ grpcPort }: Service) => ({ baseUrl: `http://127.0.0.1:${grpcPort}` });
const httpUrl = ({ httpPort }: Service) => ({
  baseUrl: `http://127.0.0.1:${httpPort}`,
  httpVersion: "1.1" as const,
});

const callers: [protocol: string, (service: Service) => Caller][] = [
  ["gRPC", rpc((service) => createGrpcTransport(grpcUrl(service)))],
  ["Connect", rpc((service) => createConnectTransport(httpUrl(service)))],
  ["gRPC-Web", rpc((service) => createGrpcWebTransport(httpUrl(service)))],
  ["REST", rest],
];

/** @param env the settings of a service whose database is empty */
function describeRules(name: string, env: () => NodeJS.ProcessEnv): void {
  describe(name, () => {
    it.each(callers)("%s refuses what breaks a rule, and stores nothing", async (_, connect) => {
      const service = await startService(env());
      const call = connect(service);
      for (const [kind, request, refusal] of refusals) {
        expect(await call(request), kind).toEqual(refusal);
      }
      expect((await grpcClient(service).listInvestors({})).investors).toEqual([]);
    });

    it("refuses an unknown member by name wherever it takes JSON", async () => {
      const service = await startService(env());
      for (const [path, type, reason] of [
        [
          "/investor.v1.InvestorService/CreateInvestor",
          "INVESTOR_TYPE_INDIVIDUAL",
          "MALFORMED_REQUEST",
        ],
        ["/v1/investors", "individual", "INVALID_FIELDS"],
      ] as const) {
        const response = await fetch(httpUrl(service).baseUrl + path, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ ...aCreate(), type, nickName: "Ada" }),
        });
        const text = await response.text();
        expect(response.status).toBe(400);
        expect(text).toContain("nickName");
        expect(text).toContain(reason);
      }
      expect((await grpcClient(service).listInvestors({})).investors).toEqual([]);
    });

    it("keeps text exactly as it was sent, up to 256 code points", async () => {
      const client = grpcClient(await startService(env()));
      for (const { requestId: _, ...change } of acceptedChanges) {
        const { id } = await client.createInvestor(aCreate(change));
        expect(await client.getInvestor({ id })).toMatchObject(change);
      }
    });

    it("makes one record of a storm of replays, and refuses other content", async () => {
      const service = await startService(env());
      const clients = Array.from({ length: 8 }, () => grpcClient(service));
      const request = aCreate({ requestId: v7() });
      const storm = Array.from({ length: 800 }, (_, i) => clients[i % 8]?.createInvestor(request));
      const ids = new Set((await Promise.all(storm)).map((investor) => investor?.id));
      expect(ids.size).toBe(1);
      const client = grpcClient(service);
      const failure = await failureOf(client.createInvestor({ ...request, lastName: "" }));
      expect(failure).toMatchObject({ code: "AlreadyExists", reason: "REQUEST_ID_REUSED" });
      const { investors } = await client.listInvestors({});
      expect(investors.map(({ id, lastName }) => [id, lastName])).toEqual([
        [ids.values().next().value, request.lastName],
      ]);
    });

    it("lists all records once, ascending by id, page by page", async () => {
      const client = grpcClient(await startService(env()));
      const created = await Promise.all(
        Array.from({ length: 257 }, () => client.createInvestor(aCreate())),
      );
      const all = await listAll(client, 100);
      expect(all.map(({ id }) => id)).toEqual(created.map(({ id }) => id).sort());
    });
  });
}

describeRules("on SQLite", () => ({}));

await describeWithMongo("on MongoDB", "set of three", (mongo) => {
  describeRules("three members", () => ({ DATABASE_URL: mongo.url() }));
});

describe("a deadline", () => {
  it("ends a call that takes longer than the server's limit", async () => {
    const service = await startService({ REQUEST_TIMEOUT: "300ms" });
    const client = grpcClient(service);
    const release = lockDatabase(service);
    const failure = await failureOf(client.createInvestor(aCreate()));
    expect(failure).toMatchObject({ code: "DeadlineExceeded", reason: "DEADLINE_EXCEEDED" });
    expect(failure.message).toContain("may or may not be stored");
    release();
    await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
  });

  // The header is all that tells the service of it: neither client has a timer of its own.
  it.each([
    ["gRPC", createByGrpc],
    ["Connect", createByConnect],
  ])("of the client counts when it is sooner, by %s", async (_, createWithin200Ms) => {
    const service = await startService();
    await grpcClient(service).createInvestor(aCreate());
    const release = lockDatabase(service);
    const start = performance.now();
    expect(await createWithin200Ms(service)).toEqual({
      code: Code.DeadlineExceeded,
      reason: "DEADLINE_EXCEEDED",
    });
    expect(performance.now() - start).toBeLessThan(4_000);
    release();
  });
});

async function createByGrpc({ grpcPort }: Service) {
  const path = "/investor.v1.InvestorService/CreateInvestor";
  const request = create(CreateInvestorRequestSchema, aCreate());
  const body = frame(toBinary(CreateInvestorRequestSchema, request));
  const headers = { "grpc-timeout": "200m" };
  const { status, reason } = await rawCall(rawConnection(grpcPort), path, body, headers);
  return { code: status, reason };
}

async function createByConnect(service: Service) {
  const url = `${httpUrl(service).baseUrl}/investor.v1.InvestorService/CreateInvestor`;
  const request = create(CreateInvestorRequestSchema, aCreate());
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", "connect-timeout-ms": "200" },
    body: toJsonString(CreateInvestorRequestSchema, request),
  });
  expect(response.status).toBe(504);
  const { code, details } = (await response.json()) as {
    code: string;
    details: { type: string; value: string }[];
  };
  expect(code).toBe("deadline_exceeded");
  const info = details.find(({ type }) => type === ErrorInfoSchema.typeName);
  const { reason } = fromBinary(ErrorInfoSchema, Buffer.from(info?.value ?? "", "base64"));
  return { code: Code.DeadlineExceeded, reason };
}

describe("a locked database", () => {
  it("makes creates fail as not written, and no earlier record is lost", async () => {
    const service = await startService();
    const client = grpcClient(service);
    const first = await client.createInvestor(aCreate());
    const release = lockDatabase(service);
    const failure = await failureOf(client.createInvestor(aCreate()));
    expect(failure).toMatchObject({
      code: "Unavailable",
      reason: "STORE_UNAVAILABLE",
      hasRetryDelay: true,
    });
    release();
    expect((await client.listInvestors({})).investors).toEqual([first]);
  });
});
