import { setTimeout as delay } from "node:timers/promises";
import { create, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { type Any, anyPack } from "@bufbuild/protobuf/wkt";
import {
  type Code,
  ConnectError,
  type HandlerContext,
  type ServiceImpl,
} from "@connectrpc/connect";
import { callKey } from "../../src/protocols/streams.ts";
import { toWholeContext } from "./context.ts";
import type { Code as WireCode } from "./gen/connectrpc/conformance/v1/config_pb.js";
import {
  type BidiStreamRequest,
  BidiStreamRequestSchema,
  ClientStreamRequestSchema,
  type ConformancePayload_RequestInfo,
  ConformancePayload_RequestInfoSchema,
  type ConformanceService,
  type Header,
  IdempotentUnaryRequestSchema,
  ServerStreamRequestSchema,
  type StreamResponseDefinition,
  UnaryRequestSchema,
  type UnaryResponseDefinition,
  type Error as WireError,
} from "./gen/connectrpc/conformance/v1/service_pb.js";

type Info = ConformancePayload_RequestInfo;

/** The service of the conformance suite, as its proto file describes each method. */
export const conformanceService: Partial<ServiceImpl<typeof ConformanceService>> = {
  unary(request, context) {
    const requests = pack(UnaryRequestSchema, [request]);
    return answerOnce(request.responseDefinition, requests, toWholeContext(context));
  },

  idempotentUnary(request, context) {
    const requests = pack(IdempotentUnaryRequestSchema, [request]);
    return answerOnce(request.responseDefinition, requests, toWholeContext(context));
  },

  async *serverStream(request, context) {
    const info = describe(context, pack(ServerStreamRequestSchema, [request]));
    yield* answerAll(request.responseDefinition, info, context);
  },

  async clientStream(requests, context) {
    const all = await Array.fromAsync(requests);
    const packed = pack(ClientStreamRequestSchema, all);
    return answerOnce(all[0]?.responseDefinition, packed, context);
  },

  async *bidiStream(requests, context) {
    const received: BidiStreamRequest[] = [];
    let sent = 0;
    for await (const request of requests) {
      received.push(request);
      const [{ fullDuplex, responseDefinition } = request] = received;
      if (!fullDuplex) continue;
      const data = responseDefinition?.responseData[sent];
      if (data === undefined) break;
      if (sent === 0) setMetadata(responseDefinition, context);
      await delay(responseDefinition?.responseDelayMs);
      const packed = pack(BidiStreamRequestSchema, [request]);
      const first = sent === 0 ? describe(context, packed) : undefined;
      const info = create(ConformancePayload_RequestInfoSchema, { requests: packed });
      yield { payload: { data, requestInfo: first ?? info } };
      sent += 1;
    }
    if (received[0] === undefined) return;
    const info = describe(context, pack(BidiStreamRequestSchema, received));
    yield* answerAll(received[0].responseDefinition, info, context, sent);
  },
};

async function answerOnce(
  definition: UnaryResponseDefinition | undefined,
  requests: Any[],
  context: HandlerContext,
) {
  setMetadata(definition, context);
  const requestInfo = describe(context, requests);
  await delay(definition?.responseDelayMs);
  if (definition?.response.case === "error") throwIfAny(definition.response.value, requestInfo);
  const hasData = definition?.response.case === "responseData";
  return {
    payload: { requestInfo, ...(hasData && { data: definition.response.value as Uint8Array }) },
  };
}

/** Sends what has not been sent yet; what was asked is told once. */
async function* answerAll(
  definition: StreamResponseDefinition | undefined,
  info: Info,
  context: HandlerContext,
  sent = 0,
) {
  if (sent === 0) setMetadata(definition, context);
  let requestInfo = sent === 0 ? info : undefined;
  for (const data of definition?.responseData.slice(sent) ?? []) {
    await delay(definition?.responseDelayMs);
    yield { payload: { data, ...(requestInfo && { requestInfo }) } };
    requestInfo = undefined;
  }
  throwIfAny(definition?.error, requestInfo);
}

function throwIfAny(error: WireError | undefined, info: Info | undefined): void {
  if (error === undefined) return;
  const details = [
    ...error.details,
    ...(info ? [anyPack(ConformancePayload_RequestInfoSchema, info)] : []),
  ];
  const thrown = new ConnectError(error.message ?? "", toCode(error.code));
  thrown.details = details.map(({ typeUrl, value }) => ({
    type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
    value,
  }));
  throw thrown;
}

/** The codes of the suite are those of the protocols, shifted into an enum of its own. */
function toCode(code: WireCode): Code {
  return code as number as Code;
}

function setMetadata(
  definition: Pick<UnaryResponseDefinition, "responseHeaders" | "responseTrailers"> | undefined,
  { responseHeader, responseTrailer }: HandlerContext,
): void {
  const append = (to: Headers, headers: Header[] = []) => {
    for (const { name, value } of headers) for (const each of value) to.append(name, each);
  };
  append(responseHeader, definition?.responseHeaders);
  append(responseTrailer, definition?.responseTrailers);
}

function describe(context: HandlerContext, requests: Any[]): Info {
  const toHeaders = (all: Iterable<[string, string]>) =>
    Array.from(all, ([name, value]) => ({ name, value: [value] }));
  // The service takes the timeout of a client itself, before Connect sees it.
  const { timeoutMs } = context.values.get(callKey).head;
  return create(ConformancePayload_RequestInfoSchema, {
    requestHeaders: toHeaders(context.requestHeader),
    requests,
    ...(timeoutMs !== undefined && { timeoutMs: BigInt(Math.floor(timeoutMs)) }),
    ...(context.requestMethod === "GET" && {
      connectGetInfo: { queryParams: toHeaders(new URL(context.url).searchParams) },
    }),
  });
}

function pack<Desc extends DescMessage>(schema: Desc, messages: MessageShape<Desc>[]): Any[] {
  return messages.map((message) => anyPack(schema, message));
}
