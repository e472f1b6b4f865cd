import { readFileSync } from "node:fs";
import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import { expect } from "vitest";

type Schema = Record<string, unknown>;

interface Content {
  schema: Schema;
  example?: unknown;
}

/** What an operation takes, and what it replies with by status. */
export interface Operation {
  operationId: string;
  parameters: ({ name: string } & Content)[];
  requestBody: { content: Record<string, Content> };
  responses: Record<
    string,
    { description: string; content: Record<string, Content | undefined> } | undefined
  >;
}

/** The bytes of the document. */
export const openApiFile = readFileSync(
  new URL("../../proto/investor/v1/openapi.json", import.meta.url),
);

const text = openApiFile.toString();

/** The document, its references of components resolved but for those to schemas. */
export const openApi: {
  servers: { url: string }[];
  paths: Record<string, Record<string, Operation | undefined> | undefined>;
} = JSON.parse(text, resolveReference);

const ajv = new Ajv2020({ allErrors: true, validateFormats: false });
ajv.addVocabulary(Object.keys(JSON.parse(text)));
ajv.addSchema(JSON.parse(text), "openapi.json");

function resolveReference(this: unknown, _: string, value: unknown): unknown {
  const { $ref = "" } = (value ?? {}) as { $ref?: string };
  const [, kind = "", name = ""] = /^#\/components\/(\w+)\/(\w+)$/.exec($ref) ?? [];
  if (kind === "" || kind === "schemas") return value;
  return JSON.parse(JSON.stringify(JSON.parse(text).components[kind][name]), resolveReference);
}

/** A function that tells whether a value is as a schema of the document says. */
export function compile(schema: Schema): ValidateFunction {
  return ajv.compile(
    JSON.parse(JSON.stringify(schema).replaceAll('"#/components', '"openapi.json#/components')),
  );
}

/** The operation of a request; undefined if there is none. HEAD is as GET (RFC 9110, 9.3.2). */
export function findOperation(method: string, path: string): Operation | undefined {
  const { pathname } = new URL(path, "http://localhost");
  const template = pathname.replace(/^(\/v1\/investors\/)[^/]+$/, "$1{id}");
  return openApi.paths[template]?.[method === "HEAD" ? "get" : method.toLowerCase()];
}

/** Checks that a reply is one that the document has for the operation. */
export function expectDocumented(
  operation: Operation,
  status: number,
  contentType: string | null,
  body: unknown,
): void {
  const response = operation.responses[status];
  expect(response, `${operation.operationId} with ${status}`).toBeDefined();
  const { schema, example } = response?.content[contentType ?? ""] ?? {};
  expect(schema, `${operation.operationId} with ${status}: ${contentType}`).toBeDefined();
  const validate = compile(schema ?? {});
  validate(body);
  expect(validate.errors ?? []).toEqual([]);
  if (contentType === "application/problem+json") {
    const { reason } = body as { reason: string };
    expect(response?.description).toContain(reason);
    const { type, title, ...shown } = example as Record<string, unknown>;
    if (shown.reason === reason) expect(body).toMatchObject({ type, title });
  }
}
