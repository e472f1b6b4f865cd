import { create, type Message } from "@bufbuild/protobuf";
import type { ServiceImplSpec } from "@connectrpc/connect";
import {
  type Investor,
  ListInvestorsRequestSchema,
  type ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import type { Call } from "../calls/call.ts";
import type { HttpCall } from "../calls/call-head.ts";
import type { Gate } from "../calls/gate.ts";
import { deadlineExceeded } from "../failures.ts";
import type { Connection } from "../http/connection.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import { type HttpRequest, pathOf, queryOf } from "../http/request.ts";
import { toJson } from "../investor/json.ts";
import { limits } from "../limits.ts";
import { jsonHeaders, methodNotAllowed, sendProblem } from "./problem.ts";
import { collection, locate, readCreate, readGet, readList } from "./rest-request.ts";
import { type Codec, createUnary, type UnaryRpc } from "./unary.ts";

/** 100 records: larger pages would live long enough to reach V8's old generation. */
const firstPage = create(ListInvestorsRequestSchema, { pageSize: 100 });

const listTooLong = deadlineExceeded("the list took too long to read");

/**
 * Serves the investors as plain JSON over HTTP.
 *
 * @param service an implementation of the InvestorService
 * @returns a handler that serves a request, or returns undefined if nothing is at its path
 */
export function createRest(service: ServiceImplSpec, gate: Gate) {
  const serveUnary = createUnary(gate);
  const rpc = (name: string) =>
    ({ spec: service.methods[name], isPublic: false, maxBytes: limits.requestBytes }) as UnaryRpc;
  const createInvestor = rpc("createInvestor");
  const getInvestor = rpc("getInvestor");
  const listInvestors = rpc("listInvestors");
  const wholeListCodec: RestCodec = {
    ...common,
    describe: (req) => ({ ...common.describe(req), isWholeList: true }),
    // Reads the first page before the reply begins, so that its failure can still set the status.
    decode: () => firstPage,
    async reply(res, first, call, req) {
      for (const [name, value] of Object.entries(jsonHeaders)) res.setHeader(name, value);
      if (req.method === "HEAD") res.end();
      else await writeAll(res, first as ListInvestorsResponse, call);
    },
  };

  /** Writes each part once the one before has left the process, so that little waits for a slow client. */
  async function writeAll(response: HttpResponse, first: ListInvestorsResponse, call: Call) {
    let page = first;
    let separator = "[";
    for (;;) {
      const text = separator + page.investors.map(toJson).join(",");
      const { nextPageToken: pageToken } = page;
      call.startReplyTimer();
      if (pageToken === "") {
        response.end(`${text}]`);
        return;
      }
      // After an error, the call ends once the response has closed.
      const written = new Promise<void>((resolve) => {
        response.write(text, (error) => {
          if (!error) resolve();
        });
      });
      await call.unlessAborted(written);
      if (performance.now() - call.startedAt > limits.wholeListMs) throw listTooLong;
      separator = ",";
      call.setDeadline();
      const next = { ...firstPage, pageToken };
      page = (await listInvestors.spec.impl(next, call)) as ListInvestorsResponse;
    }
  }

  return (connection: Connection, req: HttpRequest, res: HttpResponse) => {
    const path = pathOf(req);
    const serve = (codec: RestCodec, rpc: UnaryRpc) =>
      serveUnary(codec, rpc, connection, req.headers, req, res);
    const isRead = req.method === "GET" || req.method === "HEAD";
    if (path === collection) {
      if (req.method === "POST") return serve(createCodec, createInvestor);
      if (!isRead) throw methodNotAllowed(req, "GET, HEAD, POST");
      const codec = queryOf(req).size === 0 ? wholeListCodec : pageCodec;
      return serve(codec, listInvestors);
    }
    if (!/^\/v1\/investors\/[^/]+$/.test(path)) return undefined;
    if (isRead) return serve(getCodec, getInvestor);
    throw methodNotAllowed(req, "GET, HEAD");
  };
}

function describeCall(route: string) {
  return (request: HttpRequest): HttpCall => ({ request, route, isWholeList: false });
}

type RestCodec = Codec<HttpRequest, HttpResponse>;

const common = {
  transport: "rest",
  describe: describeCall(collection),
  reply: (response: HttpResponse, output: Message) =>
    send(response, 200, jsonHeaders, toJson(output as Investor)),
  fail(response, error, _, request) {
    // Cut off, so that nobody mistakes part of the list for the whole: over HTTP/2, by an error's code.
    if (response.headersSent) response.destroy(error);
    else sendProblem(response, error, (violation) => locate(request, violation));
  },
} satisfies Partial<RestCodec>;

const createCodec: RestCodec = {
  ...common,
  decode: (_, body, request) => readCreate(request, body),
};

const getCodec: RestCodec = {
  ...common,
  describe: describeCall(`${collection}/{id}`),
  decode: (_, __, request) => readGet(request),
};

const pageCodec: RestCodec = {
  ...common,
  decode: (_, __, request) => readList(request),
  reply(response, output, _, request) {
    const { investors, nextPageToken } = output as ListInvestorsResponse;
    const headers: Record<string, string> = { ...jsonHeaders };
    if (nextPageToken !== "") {
      const query = queryOf(request);
      query.set("pageToken", nextPageToken);
      headers.link = `<?${query}>; rel="next"`;
    }
    send(response, 200, headers, `[${investors.map(toJson).join(",")}]`);
  },
};
