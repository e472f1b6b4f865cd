import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { create, type DescMethodUnary, type MessageShape } from "@bufbuild/protobuf";
import { Code, ConnectError, type ServiceImplSpec } from "@connectrpc/connect";
import {
  GetInvestorRequestSchema,
  InvestorService,
  type ListInvestorsRequest,
  ListInvestorsRequestSchema,
  type ListInvestorsResponse,
} from "../../gen/investor/v1/investor_pb.js";
import type { Call } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import { createSlots } from "../calls/slots.ts";
import { principalKey } from "../service/ids.ts";
import { answerJson, jsonHeaders, pathOf, toHead } from "./exchange.ts";
import type { HttpHandler } from "./http.ts";
import { answerProblem, HttpError, methodNotAllowed } from "./problem.ts";
import { fromJson, toJson } from "./rest-json.ts";
import { decodeSegment, locate, readJsonBody, readPageSize, readQuery } from "./rest-request.ts";

/** What a {@link createRestHandler REST handler} serves, and within which limits. */
export interface RestHandlerOptions {
  /** An implementation of the InvestorService. */
  service: ServiceImplSpec;
  gate: Gate;
  /** The largest body to take in bytes. */
  maxMessageBytes: number;
}

const collection = "/v1/investors";

/** How many callers may stream the whole list at once; each can take long. */
const maxStreams = 8;

/** How many of them one authenticated caller may have. */
const maxStreamsOfCaller = 6;

/** Timeout of a caller who reads nothing of a stream, in milliseconds. */
const streamIdleMs = 30_000;

const { createInvestor, getInvestor, listInvestors } = InvestorService.method;

type Handler = (req: IncomingMessage, res: ServerResponse, call: Call) => Promise<void>;

/** Serves the investors as plain JSON over HTTP, and 404 on every other path. */
export function createRestHandler(options: RestHandlerOptions): HttpHandler {
  const { service, gate, maxMessageBytes } = options;
  const streams = createSlots(maxStreams, maxStreamsOfCaller);

  async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const [method, handle] = findRoute(req);
    const call = await gate.admit({ method, transport: "rest", ...toHead(req, res) });
    try {
      await handle(req, res, call);
    } catch (error) {
      if (!(error instanceof HttpError)) throw call.fail(error);
      call.fail(error.toConnectError());
      throw error;
    }
  }

  function findRoute(req: IncomingMessage): [DescMethodUnary, Handler] {
    const path = pathOf(req);
    const method = req.method === "HEAD" ? "GET" : req.method;
    if (path === collection) {
      if (method === "POST") return [createInvestor, handleCreate];
      if (method === "GET") return [listInvestors, handleList];
      throw methodNotAllowed(req, "GET, HEAD, POST");
    }
    if (/^\/v1\/investors\/[^/]+$/.test(path)) {
      if (method === "GET") return [getInvestor, handleGet];
      throw methodNotAllowed(req, "GET, HEAD");
    }
    throw new HttpError(404, "there is nothing at this path");
  }

  async function handleCreate(
    req: IncomingMessage,
    res: ServerResponse,
    call: Call,
  ): Promise<void> {
    readQuery(req, []);
    const body = await readJsonBody(req, maxMessageBytes);
    const requestId = [req.headers["idempotency-key"]].flat()[0];
    const investor = await invoke(createInvestor, fromJson(body, requestId), call);
    answerJson(res, toJson(investor));
  }

  async function handleGet(req: IncomingMessage, res: ServerResponse, call: Call): Promise<void> {
    readQuery(req, []);
    const id = decodeSegment(pathOf(req).slice(collection.length + 1));
    const input = create(GetInvestorRequestSchema, { id });
    answerJson(res, toJson(await invoke(getInvestor, input, call)));
  }

  async function handleList(req: IncomingMessage, res: ServerResponse, call: Call): Promise<void> {
    const query = readQuery(req, ["pageSize", "pageToken"]);
    if (query.size === 0) return streamAll(req, res, call);
    const input = create(ListInvestorsRequestSchema, {
      pageSize: readPageSize(query.get("pageSize")),
      pageToken: query.get("pageToken") ?? "",
    });
    const page = await invoke(listInvestors, input, call);
    if (page.nextPageToken !== "") {
      const size = input.pageSize === 0 ? "" : `pageSize=${input.pageSize}&`;
      res.setHeader("link", `<${collection}?${size}pageToken=${page.nextPageToken}>; rel="next"`);
    }
    answerJson(res, `[${page.investors.map(toJson).join(",")}]`);
  }

  /** Streams all records page by page; each page read is a call with a deadline of its own. */
  async function streamAll(req: IncomingMessage, res: ServerResponse, call: Call): Promise<void> {
    call.onClose(streams.acquire(call.values.get(principalKey)));
    const read = (input: ListInvestorsRequest): Promise<ListInvestorsResponse> =>
      invoke(listInvestors, input, call);
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
    } catch (error) {
      call.fail(error);
      // Without its end, nobody takes the part for the whole.
      res.destroy();
    }
  }

  async function invoke<M extends DescMethodUnary>(
    method: M,
    input: MessageShape<M["input"]>,
    call: Call,
  ): Promise<MessageShape<M["output"]>> {
    const spec = service.methods[method.localName];
    if (spec?.kind !== "unary") throw new Error(`${method.name} is not implemented`);
    return (await call.invoke(spec, input)) as MessageShape<M["output"]>;
  }

  return async (req, res) => {
    try {
      await serve(req, res);
    } catch (error) {
      const isReply = error instanceof ConnectError || error instanceof HttpError;
      if (!isReply || res.headersSent) throw error;
      answerProblem(res, error, (field) => locate(req, field));
    }
  };
}

/** Resolves when the caller has read enough; rejects if it leaves or reads nothing. */
async function drained(res: ServerResponse): Promise<void> {
  const left = new AbortController();
  const leave = () => left.abort();
  res.once("close", leave);
  try {
    if (res.closed) throw new Error("the client left");
    await once(res, "drain", {
      signal: AbortSignal.any([left.signal, AbortSignal.timeout(streamIdleMs)]),
    });
  } catch (error) {
    throw new ConnectError("the answer was not read", Code.Canceled, undefined, undefined, error);
  } finally {
    res.off("close", leave);
  }
}
