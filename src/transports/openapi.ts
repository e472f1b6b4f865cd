import { textFields, typesByName } from "../investor.ts";
import { problemType } from "./problem.ts";

const controlCharacters = "\\u0000-\\u001F\\u007F-\\u009F";

/** Base64 (RFC 4648, 5) of 17 bytes, the first of which is 1. */
const pageToken = "A[Q-Za-f][A-Za-z0-9_-]{20}[AEIMQUYcgkosw048]";

const text = { type: "string", maxLength: 256, pattern: `^[^${controlCharacters}]*$` };
const code = { type: "string", pattern: "^[a-z]{2,3}$" };

const content = {
  type: { type: "string", enum: [...typesByName.keys()] },
  ...Object.fromEntries(
    textFields.map((field) => [field, field === "country" || field === "language" ? code : text]),
  ),
};

const schema = (name: string) => ({ $ref: `#/components/schemas/${name}` });
const json = (body: object) => ({ "application/json": { schema: body } });

const problem = (description: string, headers?: object) => ({
  description,
  ...(headers && { headers }),
  content: { [problemType]: { schema: schema("Problem") } },
});

const retryAfter = {
  "Retry-After": {
    description: "After how many seconds to try again.",
    schema: { type: "string" },
  },
};

const challenge = {
  "WWW-Authenticate": { description: "What is needed (RFC 6750).", schema: { type: "string" } },
};

const errors = {
  400: problem("The request breaks a rule, or is malformed. Every violation is told."),
  401: problem("The service asks who calls.", challenge),
  403: problem("The caller may not do this.", challenge),
  500: problem("A fault of the service, or a create whose outcome is unknown."),
  503: problem("There is no room, or the store is not available. Try again.", retryAfter),
  504: problem("The call took too long."),
};

const investor = { description: "The record.", content: json(schema("Investor")) };

/** The REST interface in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html). */
export const openApi = {
  openapi: "3.1.0",
  info: {
    title: "Investor Records",
    version: "1",
    description: "Keeps investor records: create one, get one, list them all.",
    license: { name: "MIT", identifier: "MIT" },
  },
  // Without credentials where the service asks for none.
  security: [{}, { bearer: [] }],
  paths: {
    "/v1/investors": {
      post: {
        operationId: "createInvestor",
        summary: "Stores a new investor.",
        description:
          "Send the header Idempotency-Key (components/parameters) to be able to repeat the request " +
          "safely: the same key with the same body answers with the record that is there, and with " +
          "another body with 422.",
        requestBody: { required: true, content: json(schema("InvestorContent")) },
        responses: {
          200: investor,
          ...errors,
          413: problem("The body is too large."),
          415: problem("The body is not application/json."),
          422: problem("The Idempotency-Key was used before, for another body."),
        },
      },
      get: {
        operationId: "listInvestors",
        summary: "Lists the investors, ascending by id.",
        description:
          "Without parameters the answer is all of them, streamed; with any, a page, and the Link header " +
          "leads to the next.",
        parameters: [
          {
            name: "pageSize",
            in: "query",
            description: "The most records of a page: 100 if 0, at most 1000.",
            schema: { type: "integer", format: "int32", minimum: 0, maximum: 2_147_483_647 },
          },
          {
            name: "pageToken",
            in: "query",
            description: "Where the page begins, as the link to it has it.",
            schema: { type: "string", pattern: `^(${pageToken})?$` },
          },
        ],
        responses: {
          200: {
            description: "The records.",
            headers: {
              Link: {
                description: 'The next page, as rel="next" (RFC 8288).',
                schema: { type: "string" },
              },
            },
            content: json({ type: "array", items: schema("Investor") }),
          },
          ...errors,
        },
      },
    },
    "/v1/investors/{id}": {
      get: {
        operationId: "getInvestor",
        summary: "Gets one investor.",
        parameters: [
          {
            name: "id",
            in: "path",
            required: true,
            description: "The id of the record, in any case.",
            schema: { type: "string", minLength: 1 },
          },
        ],
        responses: { 200: investor, ...errors, 404: problem("No investor has this id.") },
      },
    },
  },
  components: {
    securitySchemes: {
      bearer: {
        type: "http",
        scheme: "bearer",
        description: "Reading needs the scope investors:read, creating investors:write.",
      },
    },
    // Not a parameter of the operation, since no schema can say which keys are still unused.
    parameters: {
      IdempotencyKey: {
        name: "Idempotency-Key",
        in: "header",
        description:
          "A UUID of the caller's choice, quoted or bare, neither nil nor max; one of version 7 is " +
          "recommended.",
        schema: { type: "string", format: "uuid" },
      },
    },
    schemas: {
      InvestorContent: {
        type: "object",
        additionalProperties: false,
        required: Object.keys(content),
        properties: content,
      },
      Investor: {
        type: "object",
        additionalProperties: false,
        required: ["id", ...Object.keys(content)],
        properties: { id: { type: "string", format: "uuid" }, ...content },
      },
      Problem: {
        type: "object",
        description: "Why a request failed (RFC 9457).",
        required: ["type", "title", "status", "detail", "reason"],
        properties: {
          type: { type: "string", format: "uri", description: "A URN for the reason." },
          title: { type: "string" },
          status: { type: "integer" },
          detail: { type: "string" },
          reason: { type: "string", description: "A stable name for the cause." },
          metadata: { type: "object", additionalProperties: { type: "string" } },
          errors: {
            type: "array",
            items: {
              type: "object",
              required: ["detail"],
              properties: {
                detail: { type: "string" },
                pointer: { type: "string", description: "Where in the body (RFC 6901)." },
                parameter: { type: "string", description: "Which parameter of the query." },
                header: { type: "string", description: "Which header." },
              },
            },
          },
        },
      },
    },
  },
};
