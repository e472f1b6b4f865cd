import type { Socket } from "node:net";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Message } from "@bufbuild/protobuf";
import type { ServiceImplSpec } from "@connectrpc/connect";
import type {
  Investor,
  ListInvestorsRequest,
  ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import type { Call, HttpCall } from "../calls/call.ts";
import {
  type HttpRequest,
  type HttpResponse,
  type Replier,
  send,
  sendHead,
} from "../http/reply.ts";
import { toJson } from "../service/plain-json.ts";
import { jsonHeaders, methodNotAllowed, sendProblem } from "./problem.ts";
import {
  collection,
  locate,
  pathOf,
  queryOf,
  readCreate,
  readGet,
  readList,
} from "./rest-request.ts";
import { type Codec, createUnary, type ProtocolOptions, type UnaryRpc } from "./unary.ts";

/** Pages of 100 records are collected young; most of 1,000 would reach the old generation. */
const streamedPageSize = 100;

/**
 * Serves the investors as plain JSON over HTTP.
 *
 * @param service an implementation of the InvestorService
 * @returns what serves a request, or returns undefined if nothing is at its path
 */
export function createRest(service: ServiceImplSpec, options: ProtocolOptions) {
  const { gate } = options;
  const serveUnary = createUnary(options);
  const rpc = (name: string) => ({ spec: service.methods[name], isPublic: false }) as UnaryRpc;
  const create = rpc("createInvestor");
  const get = rpc("getInvestor");
  const list = rpc("listInvestors");

  /** Streams all records page by page. */
  async function serveAll(socket: Socket, req: HttpRequest, res: HttpResponse): Promise<void> {
    const { method } = list.spec;
    const http = { ...describe(collection)(req), isWholeList: true };
    const head = {
      method,
      transport: "rest",
      isPublic: false,
      headers: req.headers,
      http,
    } as const;
    const call = gate.begin({ ...head, socket, response: res });
    try {
      await gate.admit(call);
      // A failure of the first page still has its own status.
      const first = await readPage(call, "");
      sendHead(res, 200, jsonHeaders);
      if (req.method === "HEAD") res.end();
      else await pipeline(Readable.from(writeAll(call, first), { highWaterMark: 1 }), res);
    } catch (error) {
      const reply = call.fail(error);
      // Without its end, nobody takes a part for the whole.
      if (res.headersSent) res.destroy();
      else sendProblem(res, reply, (field) => locate(req, field));
    }
  }

  async function readPage(call: Call, pageToken: string): Promise<ListInvestorsResponse> {
    call.limit();
    const input = { pageSize: streamedPageSize, pageToken } as ListInvestorsRequest;
    return (await call.run(() => list.spec.impl(input, call))) as ListInvestorsResponse;
  }

  async function* writeAll(call: Call, first: ListInvestorsResponse): AsyncGenerator<string> {
    let page = first;
    let separator = "[";
    for (;;) {
      const text = separator + page.investors.map(toJson).join(",");
      const isLast = page.nextPageToken === "";
      // Until it goes on, it is the client who takes time.
      call.replied();
      yield isLast ? `${text}]` : text;
      if (isLast) return;
      separator = ",";
      page = await readPage(call, page.nextPageToken);
    }
  }

  return (socket: Socket, req: HttpRequest, res: HttpResponse): Promise<void> | undefined => {
    const path = pathOf(req);
    const head = { socket, headers: req.headers };
    const isRead = req.method === "GET" || req.method === "HEAD";
    if (path === collection) {
      if (req.method === "POST") return serveUnary(createCodec, create, head, req, res);
      if (!isRead) throw methodNotAllowed(req, "GET, HEAD, POST");
      if (queryOf(req) === "") return serveAll(socket, req, res);
      return serveUnary(listCodec, list, head, req, res);
    }
    if (!/^\/v1\/investors\/[^/]+$/.test(path)) return undefined;
    if (isRead) return serveUnary(getCodec, get, head, req, res);
    throw methodNotAllowed(req, "GET, HEAD");
  };
}

function describe(route: string) {
  return (req: HttpRequest): HttpCall => ({
    method: req.method ?? "",
    path: pathOf(req),
    route,
    version: req.httpVersionMajor === 2 ? "2" : "1.1",
    isWholeList: false,
  });
}

type RestCodec = Codec<HttpRequest, Replier>;

const common = {
  transport: "rest",
  overhead: 0,
  timeoutMs: () => undefined,
  describe: describe(collection),
  reply: (response: Replier, output: Message) =>
    send(response, 200, { ...jsonHeaders }, toJson(output as Investor)),
  fail: (response, error, _, request) =>
    sendProblem(response, error, (field) => locate(request, field)),
} satisfies Partial<RestCodec>;

const createCodec: RestCodec = {
  ...common,
  decode: (_, body, request) => readCreate(request, body),
};

const getCodec: RestCodec = {
  ...common,
  describe: describe(`${collection}/{id}`),
  decode: (_, __, request) => readGet(request),
};

const listCodec: RestCodec = {
  ...common,
  decode: (_, __, request) => readList(request),
  reply(response, output, _, request) {
    const { investors, nextPageToken } = output as ListInvestorsResponse;
    const headers: Record<string, string> = { ...jsonHeaders };
    if (nextPageToken !== "") {
      const query = new URLSearchParams(queryOf(request));
      query.set("pageToken", nextPageToken);
      headers.link = `<?${query}>; rel="next"`;
    }
    send(response, 200, headers, `[${investors.map(toJson).join(",")}]`);
  },
};
