import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { create, type DescMethodUnary, type MessageShape } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  createHandlerContext,
  type Interceptor,
  type ServiceImplSpec,
} from "@connectrpc/connect";
import { createMethodUrl, invokeUnaryImplementation } from "@connectrpc/connect/protocol";
import {
  GetInvestorRequestSchema,
  InvestorService,
  type ListInvestorsRequest,
  ListInvestorsRequestSchema,
  type ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import { ended } from "../calls/ended.ts";
import { createGate, type Gate } from "../calls/gate.ts";
import { answerJson, type HttpHandler, jsonHeaders, pathOf } from "./http.ts";
import { answerProblem, HttpError, methodNotAllowed } from "./problem.ts";
import { fromJson, toJson } from "./rest-json.ts";
import { decodeSegment, locate, readJsonBody, readPageSize, readQuery } from "./rest-request.ts";

/** What a {@link createRestHandler REST handler} serves, and within which limits. */
export interface RestHandlerOptions {
  /** An implementation of the InvestorService. */
  service: ServiceImplSpec;
  interceptors: Interceptor[];
  gate: Gate;
  /** The largest body to take in bytes. */
  maxMessageBytes: number;
}

const collection = "/v1/investors";

/** How many callers may stream the whole list at once; each can take long. */
const maxStreams = 8;

/** For how long the caller of a stream may read nothing, in milliseconds. */
const streamIdleMs = 30_000;

const { createInvestor, getInvestor, listInvestors } = InvestorService.method;

/** Serves the investors as plain JSON over HTTP, and 404 on every other path. */
export function createRestHandler(options: RestHandlerOptions): HttpHandler {
  const { service, interceptors, gate, maxMessageBytes } = options;
  const streams = createGate({ maxInFlight: maxStreams });

  async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const route = findRoute(req);
    res.once("close", gate.enter());
    await route(req, res);
  }

  function findRoute(req: IncomingMessage): typeof serve {
    const path = pathOf(req);
    const method = req.method === "HEAD" ? "GET" : req.method;
    if (path === collection) {
      if (method === "POST") return handleCreate;
      if (method === "GET") return handleList;
      throw methodNotAllowed(req, "GET, HEAD, POST");
    }
    if (/^\/v1\/investors\/[^/]+$/.test(path)) {
      if (method === "GET") return handleGet;
      throw methodNotAllowed(req, "GET, HEAD");
    }
    throw new HttpError(404, "there is nothing at this path");
  }

  async function handleCreate(req: IncomingMessage, res: ServerResponse): Promise<void> {
    readQuery(req, []);
    const body = await readJsonBody(req, maxMessageBytes);
    const requestId = req.headersDistinct["idempotency-key"]?.join(", ");
    const investor = await call(createInvestor, fromJson(body, requestId), req, res);
    answerJson(res, toJson(investor));
  }

  async function handleGet(req: IncomingMessage, res: ServerResponse): Promise<void> {
    readQuery(req, []);
    const id = decodeSegment(pathOf(req).slice(collection.length + 1));
    const input = create(GetInvestorRequestSchema, { id });
    answerJson(res, toJson(await call(getInvestor, input, req, res)));
  }

  async function handleList(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const query = readQuery(req, ["pageSize", "pageToken"]);
    if (query.size === 0) return streamAll(req, res);
    const input = create(ListInvestorsRequestSchema, {
      pageSize: readPageSize(query.get("pageSize")),
      pageToken: query.get("pageToken") ?? "",
    });
    const page = await call(listInvestors, input, req, res);
    if (page.nextPageToken !== "") {
      const size = input.pageSize === 0 ? "" : `pageSize=${input.pageSize}&`;
      res.setHeader("link", `<${collection}?${size}pageToken=${page.nextPageToken}>; rel="next"`);
    }
    answerJson(res, `[${page.investors.map(toJson).join(",")}]`);
  }

  /** Streams all records page by page; each page read is a call with a deadline of its own. */
  async function streamAll(req: IncomingMessage, res: ServerResponse): Promise<void> {
    res.once("close", streams.enter());
    const read = (input: ListInvestorsRequest): Promise<ListInvestorsResponse> =>
      call(listInvestors, input, req, res);
    // Small pages die young: of 1,000 records, most would outlive two collections.
    const input = create(ListInvestorsRequestSchema, { pageSize: 100 });
    // A failure of the first page still has its own status.
    let page = await read(input);
    res.writeHead(200, jsonHeaders);
    if (req.method === "HEAD") {
      res.end();
      return;
    }
    let separator = "[";
    try {
      for (;;) {
        const text = page.investors.map(toJson).join(",");
        if (!res.write(separator + text)) await drained(res);
        if (page.nextPageToken === "") break;
        separator = ",";
        input.pageToken = page.nextPageToken;
        page = await read(input);
      }
      res.end("]");
    } catch {
      // Without its end, nobody takes the part for the whole.
      res.destroy();
    }
  }

  async function call<M extends DescMethodUnary>(
    method: M,
    input: MessageShape<M["input"]>,
    req: IncomingMessage,
    res: ServerResponse,
  ): Promise<MessageShape<M["output"]>> {
    const spec = service.methods[method.localName];
    if (spec?.kind !== "unary") throw new Error(`${method.name} is not implemented`);
    const left = new AbortController();
    const leave = () => left.abort(new ConnectError("the client left", Code.Canceled));
    const context = createHandlerContext({
      service: method.parent,
      method,
      protocolName: "rest",
      requestMethod: req.method ?? "",
      url: createMethodUrl("", method),
      requestSignal: left.signal,
      requestHeader: new Headers(req.headers as Record<string, string>),
    });
    res.once("close", leave);
    try {
      const output = await invokeUnaryImplementation(spec, context, input, interceptors);
      return output as MessageShape<M["output"]>;
    } finally {
      res.off("close", leave);
      context.abort(ended);
    }
  }

  return (req, res) => {
    serve(req, res).catch((error) => {
      if (!res.headersSent) answerProblem(res, error, (field) => locate(req, field));
      else res.destroy();
    });
    return true;
  };
}

/** Resolves when the caller has read enough; rejects if it leaves or reads nothing. */
async function drained(res: ServerResponse): Promise<void> {
  const left = new AbortController();
  const leave = () => left.abort();
  res.once("close", leave);
  try {
    await once(res, "drain", {
      signal: AbortSignal.any([left.signal, AbortSignal.timeout(streamIdleMs)]),
    });
  } finally {
    res.off("close", leave);
  }
}
