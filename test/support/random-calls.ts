/** Random calls by a seed: creates, reads, broken bodies and edge cases. */
import {
  create,
  type DescMessage,
  type MessageInitShape,
  toBinary,
  toJsonString,
} from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import {
  CreateInvestorRequestSchema,
  GetInvestorRequestSchema,
  ListInvestorsRequestSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { textFields, typeNames } from "../../src/investor/investor.ts";
import type { Sent } from "./exchange.ts";
import { broken, oddJson, type Random } from "./random.ts";
import { paths } from "./raw-grpc.ts";
import { institution } from "./records.ts";

export type Create = MessageInitShape<typeof CreateInvestorRequestSchema>;

/** A call with a message, by any protocol. */
export type MessageCall =
  | { method: "create"; input: Create }
  | { method: "get"; input: { id: string } }
  | { method: "list"; input: { pageSize?: number; pageToken?: string } };

/** A call with bytes, by the protocols that take them. */
interface BytesCall {
  method: "bytes";
  path: string;
  kind: "proto" | "json";
  body: Buffer;
}

/** What earlier calls have brought to light. */
interface Known {
  ids: string[];
  /** Of pages. */
  tokens: string[];
}

const rest = "/v1/investors";

const schemas = {
  create: CreateInvestorRequestSchema,
  get: GetInvestorRequestSchema,
  list: ListInvestorsRequestSchema,
};

/** The bytes of a call's message. */
export function encode({ method, input }: MessageCall, isJson = false): Buffer {
  const schema: DescMessage = schemas[method];
  const message = create(schema, { ...input });
  return Buffer.from(isJson ? toJsonString(schema, message) : toBinary(schema, message));
}

/** Texts on both sides of every rule. */
const texts = [
  ...["", " ", "Ada", "Łódź", "é", "e\u0301", "\u{1f600}", "\u0000", "\n", "\u007f", "\u0085"],
  ...["\u2028", "\ufeff", "\ufffd", "\uffff", '"\\/', "</script>", "null", "us", "USA", "u s"],
  ...["x".repeat(256), "x".repeat(257), "\u{1f600}".repeat(256), "\u{1f600}".repeat(257)],
];

const emptyId = `${"0".repeat(8)}-0000-0000-0000-${"0".repeat(12)}`;

/** Creates the function that makes up the next call. */
export function createCalls(random: Random, { ids, tokens }: Known) {
  const { int, pick } = random;
  const bytes = () => Uint8Array.from({ length: 16 }, () => int(0, 255));
  const uuid4 = () => v4({ random: bytes() });
  const uuid7 = () => v7({ random: bytes(), msecs: int(0, 1_700_000_000_000) });

  function aCreate(): Create {
    const changes = Array.from({ length: int(0, 3) }, () => [
      pick(textFields),
      pick([undefined, ...texts]),
    ]);
    return {
      ...institution,
      type: pick([1, 1, 2, 2, 0, 7, undefined]),
      ...Object.fromEntries(changes),
      ...pick<Create>([{}, {}, { requestId: uuid7() }, { requestId: uuid4().toUpperCase() }]),
      ...(int(0, 9) === 0 && { requestId: pick(["", "x", `{${uuid4()}}`, emptyId]) }),
    };
  }

  function aGet(): { id: string } {
    const known = () => pick(["", ...ids]);
    const others = [uuid7(), uuid4(), pick(texts), `${uuid4()} `, "a/b", "..", "%00"];
    return { id: pick([known(), known().toUpperCase(), ...others]) };
  }

  function aList() {
    const token = () => pick(["", ...tokens]);
    return {
      pageSize: pick([0, 1, 2, 7, 1_000, 1_001, 2 ** 31 - 1, -1, -(2 ** 31)]),
      pageToken: pick([token(), token(), "", "x", "AQ", "=", `${token()}A`]),
    };
  }

  function aBroken(): BytesCall {
    const call = pick<MessageCall>([
      { method: "create", input: aCreate() },
      { method: "get", input: { id: pick(["", ...ids]) } },
      { method: "list", input: { pageSize: int(-1, 3), pageToken: pick(["", ...tokens]) } },
    ]);
    const kind = pick(["proto", "json"] as const);
    const isOdd = kind === "json" && int(0, 9) === 0;
    const body = isOdd
      ? Buffer.from(pick([...oddJson, '{"city":"a","city":null}']))
      : broken(encode(call, kind === "json"), random);
    return { method: "bytes", path: paths[call.method], kind, body };
  }

  /** A create on either side of the largest size, and too long on both. */
  function anEdge(): BytesCall {
    const lastName = "x".repeat(int(65_000, 70_000));
    const body = encode({ method: "create", input: { ...institution, type: 1, lastName } });
    return { method: "bytes", path: paths.create, kind: "proto", body };
  }

  const kinds = [
    ...["create", "create", "get", "list", "broken", "broken", "broken", "edge"],
  ] as const;
  return (): MessageCall | BytesCall => {
    const kind = pick(kinds);
    if (kind === "create") return { method: kind, input: aCreate() };
    if (kind === "get") return { method: kind, input: aGet() };
    if (kind === "list") return { method: kind, input: aList() };
    return kind === "broken" ? aBroken() : anEdge();
  };
}

/** How a call is sent by REST. */
export function toRest(call: MessageCall): Sent {
  const get = (path: string) => ({ method: "GET", path, headers: {}, body: Buffer.alloc(0) });
  if (call.method === "get") return get(`${rest}/${encodeURIComponent(call.input.id)}`);
  if (call.method === "list") {
    const query = new URLSearchParams(
      Object.entries(call.input).map(([name, value]) => [name, String(value)]),
    );
    return get(query.size === 0 ? rest : `${rest}?${query}`);
  }
  const { requestId, type, ...members } = call.input;
  const name = type === undefined ? undefined : (typeNames.get(type) ?? "other");
  const body = Buffer.from(JSON.stringify({ type: name, ...members }));
  const key = requestId === undefined ? {} : { "idempotency-key": requestId };
  return {
    method: "POST",
    path: rest,
    headers: { "content-type": "application/json", ...key },
    body,
  };
}
