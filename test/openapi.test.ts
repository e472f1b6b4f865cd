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

const operations = ["POST /v1/investors", "GET /v1/investors", "GET /v1/investors/{id}"].map(
  (line) => {
    const [method = "", path = ""] = line.split(" ");
    const operation = findOperation(method, path);
    if (operation === undefined) throw new Error(`${line} is not documented`);
    return operation;
  },
);
const [createInvestor, listInvestors, getInvestor] = operations;

const isContent = compile(
  createInvestor?.requestBody.content["application/json"]?.schema ?? { not: {} },
);
const isKey = compile(schemaOf(createInvestor, "Idempotency-Key"));

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

function schemaOf(operation: Operation | undefined, name: string) {
  return parameterOf(operation, name).schema;
}

describe("the OpenAPI document", () => {
  it("has the members of the message, and those of a create", () => {
    const { Investor, InvestorContent } = JSON.parse(openApiFile.toString()).components.schemas;
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

  it("takes an Idempotency-Key quoted or bare, and no half of its quotes, nor an empty one", () => {
    for (const key of [v4(), `"${v7()}"`]) expect(isKey(key)).toBe(true);
    for (const key of [`"${v4()}`, `${v4()}"`, `""${v4()}""`, "", '""'])
      expect(isKey(key)).toBe(false);
  });

  it("takes the sizes of pages that the service takes", () => {
    const isSize = compile(schemaOf(listInvestors, "pageSize"));
    for (const size of [0, 1, 1_000, 2_147_483_647]) expect(isSize(size)).toBe(true);
    for (const size of [-1, 1.5, 2_147_483_648, "ten"]) expect(isSize(size)).toBe(false);
  });

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

  it("has no schema with a name that a language reserves, or its standard library owns", () => {
    const names = Object.keys(JSON.parse(openApiFile.toString()).components.schemas);
    expect(names.length).toBeGreaterThan(4);
    const all = Object.values(reserved).flatMap((words) => words.split(" "));
    const taken = new Set(all.map((word) => word.toLowerCase()));
    // Generators write them in capitals or not, as files and variables.
    expect(names.filter((name) => taken.has(name.toLowerCase()))).toEqual([]);
  });
});

/**
 * Reserved words, and what a file of the language sees without an import, or by its usual ones. Of Go,
 * Java, Python and TypeScript, clients are compiled: gate/openapi-clients.test.ts.
 */
const reserved = {
  "C#":
    "abstract as base bool break byte case catch char checked class const continue decimal default delegate do " +
    "double else enum event explicit extern false finally fixed float for foreach goto if implicit in int interface " +
    "internal is lock long namespace new null object operator out override params private protected public readonly " +
    "record ref required return sbyte sealed short sizeof stackalloc static string struct switch this throw true try " +
    "typeof uint ulong unchecked unsafe ushort using var virtual void volatile while " +
    "Action Activator Array Attribute Boolean Buffer Char Collections Console Convert Data DateOnly DateTime Delegate " +
    "Diagnostics Enum Environment Exception File Func Guid Half Index Int32 IO Lazy Linq List Math Memory Net Nullable " +
    "Object Path Predicate Random Range Reflection Security Single Span Stream String Task Text Thread Threading " +
    "Timer TimeSpan Tuple Type Uri Version Xml",
  Kotlin:
    "as break class continue do else false for fun if in interface is null object package return super this throw " +
    "true try typealias typeof val var when by catch constructor delegate dynamic field file finally get import init " +
    "param property receiver set setparam where value data enum sealed Annotation Any Array Boolean Byte Char " +
    "CharSequence Collection Comparable Double Enum Error Exception Float Function Int Iterable Iterator Lazy List Long " +
    "Map Nothing Number Pair Regex Result Sequence Set Short String Throwable Triple UInt Unit",
  Swift:
    "associatedtype borrowing class consuming deinit enum extension fileprivate func import init inout internal let " +
    "nonisolated open operator private precedencegroup protocol public rethrows self static struct subscript super " +
    "throw throws try typealias var actor any await Any AnyObject Array Bool Character Codable Collection Data Date " +
    "Decimal Decodable Dictionary Double Encodable Error Float Hashable Identifiable Int Int32 Int64 Locale Measurement " +
    "Never Notification Optional Order Progress Protocol Range Result Sequence Set Slice State String Substring Task Type " +
    "UInt Unit URL UUID Void",
  Rust:
    "as async await break const continue crate dyn else enum extern false fn for gen if impl in let loop match mod move " +
    "mut pub ref return self Self static struct super trait true type union unsafe use where while abstract become box " +
    "do final macro override priv try typeof unsized virtual yield bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 " +
    "u16 u32 u64 u128 usize Box Clone Copy Debug Default Drop Eq Err Error Fn From Future Hash Into Iterator None Ok " +
    "Option Ord Path Result Send Some String Sync ToString Vec",
};
