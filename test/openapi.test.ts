import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
import { createConnectTransport } from "@connectrpc/connect-node";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { createInvestorClient } from "../client/src/connect.ts";
import {
  CreateInvestorRequestSchema,
  InvestorSchema,
  InvestorService,
  InvestorType,
} from "../gen/investor/v1/investor_pb.js";
import { codes } from "../src/failures.ts";
import { firstFields, typeNames } from "../src/investor/investor.ts";
import { acceptedChanges, refusedChanges } from "./service/rules.ts";
import {
  compile,
  expectDocumented,
  findOperation,
  type Operation,
  openApi,
  openApiFile,
} from "./support/openapi.ts";
import { aCreate, everyText } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";

const createInvestor = findOperation("POST", "/v1/investors");
const listInvestors = findOperation("GET", "/v1/investors");
const getInvestor = findOperation("GET", "/v1/investors/{id}");
const operations = [createInvestor, listInvestors, getInvestor] as Operation[];

const isContent = compile(
  createInvestor?.requestBody.content["application/json"]?.schema ?? { not: {} },
);
const isKey = compile(parameterOf(createInvestor, "Idempotency-Key").schema);
const { components } = JSON.parse(openApiFile.toString());

/** Tells which parts of a create break what the document says: members, or the request id. */
function findRefused(request: MessageInitShape<typeof CreateInvestorRequestSchema>): string[] {
  const { requestId, type = InvestorType.UNSPECIFIED, $typeName: _, ...texts } = request;
  isContent({ ...texts, type: typeNames.get(type) ?? String(type) });
  const members = (isContent.errors ?? []).map(({ instancePath }) => instancePath.slice(1));
  const isWrong = requestId && !(isKey(requestId) && isKey(`"${requestId}"`));
  return [...members, ...(isWrong ? ["requestId"] : [])];
}

function parameterOf(operation: Operation | undefined, name: string) {
  const parameter = operation?.parameters.find((each) => each.name === name);
  if (parameter === undefined) throw new Error(`there is no parameter ${name}`);
  return parameter;
}

describe("the OpenAPI document", () => {
  it("has the members of the message, and those of a create", () => {
    const { Investor, InvestorContent } = components.schemas;
    const membersOf = ({ fields }: DescMessage) => fields.map(({ jsonName }) => jsonName);
    expect(Object.keys(Investor.properties)).toEqual(membersOf(InvestorSchema));
    const content = membersOf(CreateInvestorRequestSchema).filter((name) => name !== "requestId");
    expect(Object.keys(InvestorContent.properties)).toEqual(content);
  });

  it("has an operation for each method of the service, and the client a method", () => {
    const names = InvestorService.methods.map(({ localName }) => localName);
    const documented = Object.values(openApi.paths).flatMap((path) => Object.values(path ?? {}));
    const ids = documented.flatMap((operation) => operation?.operationId ?? []);
    expect(ids.toSorted()).toEqual(names.toSorted());
    const transport = createConnectTransport({ baseUrl: "http://127.0.0.1:9", httpVersion: "1.1" });
    const client = createInvestorClient(transport);
    expect(Object.keys(client)).toEqual(expect.arrayContaining(names));
    client.close();
  });

  it.each(refusedChanges)("refuses a wrong %s as the service does: %o", (field, change) => {
    expect(findRefused(aCreate(change))).toEqual([field]);
  });

  it.each(acceptedChanges)("accepts what the service does: %o", (change) => {
    expect(findRefused(aCreate(change))).toEqual([]);
  });

  it("wants the eleven members of the first release, none that it does not know, and strings only", () => {
    const members: Record<string, unknown> = { ...everyText, type: "individual" };
    expect(isContent(members)).toBe(true);
    const required = new Set(["type", ...firstFields]);
    expect(required.size).toBe(11);
    for (const name of Object.keys(members)) {
      const { [name]: _, ...others } = members;
      expect(isContent(others), `without ${name}`).toBe(!required.has(name));
      for (const value of [null, 7, true, ["IL"], {}]) {
        expect(isContent({ ...members, [name]: value }), `${name}: ${value}`).toBe(false);
      }
    }
    for (const name of ["id", "requestId", "first_name", "a/b~"]) {
      expect(isContent({ ...members, [name]: v7() }), name).toBe(false);
    }
    for (const body of [null, [], "x", 7]) expect(isContent(body)).toBe(false);
  });

  it.each<[string, Operation | undefined, right: unknown[], wrong: unknown[]]>([
    [
      "Idempotency-Key",
      createInvestor,
      [v4(), `"${v7()}"`],
      [`"${v4()}`, `${v4()}"`, `""${v4()}""`, "", '""'],
    ],
    ["pageSize", listInvestors, [0, 1, 1_000, 2_147_483_647], [-1, 1.5, 2_147_483_648, "ten"]],
  ])(
    "takes the values of %s that the service takes, and no others",
    (name, operation, right, wrong) => {
      const isValue = compile(parameterOf(operation, name).schema);
      for (const value of right) expect(isValue(value), String(value)).toBe(true);
      for (const value of wrong) expect(isValue(value), String(value)).toBe(false);
    },
  );

  it("is served as it is, and has examples that a new service replies to as it says", async () => {
    const { port } = await startInProcess();
    const served = await fetch(`http://localhost:${port}/openapi.json`);
    expect(served.headers.get("content-type")).toBe("application/json");
    expect(Buffer.from(await served.arrayBuffer())).toEqual(openApiFile);
    // Clients that are generated resolve no relative URL.
    expect(openApi.servers).toMatchObject([{ url: "http://localhost:8080" }]);
    const ask = async (path: string, init?: RequestInit) => {
      const response = await fetch(`http://localhost:${port}/v1/investors${path}`, init);
      return [response.status, (await response.json()) as { id: string }] as const;
    };
    const content = createInvestor?.requestBody.content["application/json"]?.example;
    const example = createInvestor?.responses[200]?.content["application/json"]?.example as object;
    const size = parameterOf(listInvestors, "pageSize").example;

    expect(await ask(`?pageSize=${size}`)).toEqual([200, []]);
    const [status, stored] = await ask("", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(content),
    });
    expect([status, stored]).toEqual([200, { ...example, id: stored.id }]);
    expect(await ask(`?pageSize=${size}`)).toEqual([200, [stored]]);
  });

  it("prefills nothing that another visitor may have used", () => {
    expect(parameterOf(createInvestor, "Idempotency-Key")).not.toHaveProperty("example");
    expect(parameterOf(getInvestor, "id")).not.toHaveProperty("example");
  });

  it("has a true example of every problem", () => {
    for (const operation of operations) {
      for (const [status, response] of Object.entries(operation.responses)) {
        if (status === "200") continue;
        const { example } = response?.content["application/problem+json"] ?? {};
        expectDocumented(operation, Number(status), "application/problem+json", example);
        expect(example).toMatchObject({ status: Number(status) });
      }
    }
  });

  it("names no reason that does not exist", () => {
    const known = [...Object.keys(codes), "UNSUPPORTED_MEDIA_TYPE", "CROSS_ORIGIN"];
    for (const { responses } of operations) {
      for (const [status, response] of Object.entries(responses)) {
        const reasons = response?.description.match(/\b[A-Z]{3,}(_[A-Z]+)*\b/g) ?? [];
        const named = reasons.filter((word) => word.includes("_") || known.includes(word));
        expect(known).toEqual(expect.arrayContaining(named));
        if (status !== "200") expect(named.length, status).toBeGreaterThan(0);
      }
    }
  });

  // Generated clients have types of these names, which no language reserves and no standard library owns.
  it("has no schemas but these", () => {
    const contents = ["InvestorType", "FreeText", "Country", "Language", "InvestorContent"];
    expect(Object.keys(components.schemas)).toEqual([...contents, "Investor", "Problem"]);
  });
});
