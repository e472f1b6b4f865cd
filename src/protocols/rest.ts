import type { Message } from "@bufbuild/protobuf";
import type { ConnectError, ServiceImplSpec } from "@connectrpc/connect";
import type {
  Investor,
  ListInvestorsRequest,
  ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import type { Call, UnarySpec } from "../calls/call.ts";
import { createSlots } from "../calls/slots.ts";
import type { Exchange } from "../http/exchange.ts";
import { principalKey, reserveKey } from "../service/context.ts";
import { toJson } from "../service/plain-json.ts";
import { jsonHeaders, methodNotAllowed, sendProblem } from "./problem.ts";
import { collection, locate, readCreate, readGet, readList } from "./rest-request.ts";
import type { Handler } from "./router.ts";
import { type Codec, createUnary, type ProtocolOptions } from "./unary.ts";

/** How many callers may stream the whole list at once; each can take long. */
const maxStreams = 8;

/** How many of them one authenticated caller may have. */
const maxStreamsOfCaller = 6;

/** Pages of 100 records are collected young; most of 1,000 would reach the old generation. */
const streamedPageSize = 100;

/**
 * Serves the investors as plain JSON over HTTP.
 *
 * @param service an implementation of the InvestorService
 */
export function createRest(service: ServiceImplSpec, options: ProtocolOptions): Handler {
  const { gate } = options;
  const serveUnary = createUnary(options);
  const streams = createSlots(maxStreams, maxStreamsOfCaller);
  const { createInvestor, getInvestor, listInvestors } = service.methods as Record<
    "createInvestor" | "getInvestor" | "listInvestors",
    UnarySpec
  >;

  async function serveAll(exchange: Exchange): Promise<void> {
    let call: Call | undefined;
    try {
      call = await gate.admit({
        method: listInvestors.method,
        transport: "rest",
        route: collection,
        exchange,
      });
      call.onClose(streams.acquire(call.values.get(principalKey)));
      await streamAll(exchange, call);
    } catch (reason) {
      const error = call?.fail(reason) ?? reason;
      exchange.usage.refuse();
      // Without its end, nobody takes a part for the whole.
      if (exchange.headersSent) exchange.destroy();
      else fail(exchange, error as ConnectError);
    }
  }

  /** Streams all records page by page, and reads one page ahead of what it sends. */
  async function streamAll(exchange: Exchange, call: Call): Promise<void> {
    const read = async (pageToken: string) => {
      call.limit();
      const input = { pageSize: streamedPageSize, pageToken } as ListInvestorsRequest;
      const page = (await call.invoke(listInvestors, input)) as ListInvestorsResponse;
      const text = page.investors.map(toJson).join(",");
      exchange.usage.settle(Buffer.byteLength(text));
      // Until the next one, it is the caller who takes time.
      call.limit(Number.POSITIVE_INFINITY);
      return { text, nextPageToken: page.nextPageToken };
    };
    // A failure of the first page still has its own status.
    let page = await read("");
    // From here on, it is clients who make room by reading, and others who make pages in turn.
    call.values.set(reserveKey, async (...sizes) => {
      call.limit(Number.POSITIVE_INFINITY);
      await call.reserve(...sizes);
      call.limit();
    });
    exchange.begin(200, { ...jsonHeaders });
    if (exchange.method === "HEAD") {
      exchange.end();
      return;
    }
    let separator = "[";
    while (page.nextPageToken !== "") {
      const writing = exchange.write(separator + page.text);
      separator = ",";
      [page] = await Promise.all([read(page.nextPageToken), writing]);
    }
    await exchange.write(`${separator}${page.text}]`);
    exchange.end();
  }

  return (exchange) => {
    const { path, query } = exchange;
    const method = exchange.method === "HEAD" ? "GET" : exchange.method;
    if (path === collection) {
      if (method === "POST") return serveUnary(createCodec, createInvestor, exchange);
      if (method === "GET") {
        if (query.length <= 1) return serveAll(exchange);
        return serveUnary(listCodec, listInvestors, exchange);
      }
      throw methodNotAllowed(exchange, "GET, HEAD, POST");
    }
    if (!/^\/v1\/investors\/[^/]+$/.test(path)) return undefined;
    if (method === "GET") return serveUnary(getCodec, getInvestor, exchange);
    throw methodNotAllowed(exchange, "GET, HEAD");
  };
}

function fail(exchange: Exchange, error: ConnectError): void {
  sendProblem(exchange, error, (field) => locate(exchange, field));
}

const common = {
  transport: "rest",
  route: collection,
  overhead: 0,
  timeoutMs: () => undefined,
  reply: (exchange: Exchange, output: Message) =>
    exchange.send(200, { ...jsonHeaders }, toJson(output as Investor)),
  fail,
} as const;

const createCodec: Codec = {
  ...common,
  decode: (_, body, { head }) => readCreate(head.exchange, body),
};

const getCodec: Codec = {
  ...common,
  route: `${collection}/{id}`,
  decode: (_, __, { head }) => readGet(head.exchange),
};

const listCodec: Codec = {
  ...common,
  decode: (_, __, { head }) => readList(head.exchange),
  reply(exchange, output) {
    const { investors, nextPageToken } = output as ListInvestorsResponse;
    const headers: Record<string, string> = { ...jsonHeaders };
    if (nextPageToken !== "") {
      const query = new URLSearchParams(exchange.query);
      query.set("pageToken", nextPageToken);
      headers.link = `<${collection}?${query}>; rel="next"`;
    }
    exchange.send(200, headers, `[${investors.map(toJson).join(",")}]`);
  },
};
