import { readFileSync } from "node:fs";
import type { Gate } from "../calls/gate.ts";
import { createSlots, limits } from "../calls/limits.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import type { Connection } from "../http/connection.ts";
import { followReply, type HttpResponse, send, sendInParts } from "../http/reply.ts";
import { type HttpRequest, pathOf } from "../http/request.ts";
import { jsonHeaders, methodNotAllowed } from "../protocols/problem.ts";
import type { Handler } from "../protocols/router.ts";
import { packageFolder } from "../version.ts";
import { createReference } from "./reference.ts";

/** An upper bound of the web pages' sizes, in bytes. */
const maxPageBytes = 2 ** 21;

type Reply = (req: HttpRequest, res: HttpResponse, connection: Connection) => void | Promise<void>;

/** Serves the probes, the metrics, the OpenAPI document and the reference page. */
export function createWebPages(isReady: () => boolean, gate: Gate, telemetry: Telemetry): Handler {
  const openApi = readFileSync(new URL("proto/investor/v1/openapi.json", packageFolder));
  let rendering: Promise<string> | undefined;
  const { webPages, webPagesOfConnection, metrics } = limits;
  const pageSlots = createSlots("web pages", webPages, webPagesOfConnection, "connection");
  const metricsSlots = createSlots("requests for metrics", metrics, metrics);
  const sendOpenApi = (req: HttpRequest, res: HttpResponse) =>
    sendInParts(req, res, jsonHeaders, openApi);
  const pages = { ...createReference(), "/openapi.json": sendOpenApi };
  const replies: Record<string, Reply> = {
    ...Object.fromEntries(Object.entries(pages).map(([path, page]) => [path, withSlot(page)])),
    // Probes need no slot, so that nobody can block them.
    "/healthz": (...probe) => sendProbe(probe, 200, "alive"),
    "/readyz": (...probe) =>
      isReady() ? sendProbe(probe, 200, "ready") : sendProbe(probe, 503, "not ready"),
    "/metrics": sendMetrics,
  };

  function sendProbe([req, res, connection]: Parameters<Reply>, code: number, status: string) {
    followReply(connection, req, res);
    send(res, code, jsonHeaders, `{"status":"${status}"}`);
  }

  /** Serves a web page if a slot is free, which it holds until the reply has closed. */
  function withSlot(page: (req: HttpRequest, res: HttpResponse) => Promise<void>): Reply {
    return (req, res, connection) => {
      res.once("close", pageSlots.acquire(connection.peer.address));
      followReply(connection, req, res, maxPageBytes);
      return page(req, res);
    };
  }

  async function sendMetrics(req: HttpRequest, res: HttpResponse, connection: Connection) {
    const closed = new Promise<void>((resolve) => res.once("close", resolve));
    await gate.authenticate(connection.peer, req.headers);
    const release = metricsSlots.acquire("");
    void closed.then(release);
    // Concurrent requests share one text.
    rendering ??= telemetry.metrics().finally(() => {
      rendering = undefined;
    });
    const text = await rendering;
    followReply(connection, req, res, text.length);
    send(res, 200, { "content-type": telemetry.metricsType }, text);
  }

  async function serve(reply: Reply, ...[req, res, connection]: Parameters<Reply>): Promise<void> {
    try {
      await reply(req, res, connection);
    } catch (error) {
      telemetry.noteRefusal(connection.peer.address, error);
      throw error;
    }
  }

  return (connection, req, res) => {
    const path = pathOf(req);
    const reply = Object.hasOwn(replies, path) ? replies[path] : undefined;
    if (reply === undefined) return undefined;
    if (req.method !== "GET" && req.method !== "HEAD") throw methodNotAllowed(req, "GET, HEAD");
    return serve(reply, req, res, connection);
  };
}
