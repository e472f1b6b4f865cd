import { readFileSync } from "node:fs";
import { packageFolder } from "../build.ts";
import type { Gate } from "../calls/gate.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import { readTimeoutMs } from "../http/connection.ts";
import { type HttpResponse, send } from "../http/reply.ts";
import { type HttpRequest, pathOf } from "../http/request.ts";
import { jsonHeaders, methodNotAllowed } from "../protocols/problem.ts";
import type { Handler } from "../protocols/router.ts";
import { createReference } from "./reference.ts";

interface PagesOptions {
  isReady(): boolean;
  /** Asks for credentials before the metrics are shown. */
  gate: Gate;
  telemetry: Telemetry;
}

/** Serves the probes, the metrics, the OpenAPI document and the reference page. */
export function createPages({ isReady, gate, telemetry }: PagesOptions): Handler {
  const openApi = readFileSync(new URL("proto/investor/v1/openapi.json", packageFolder));
  let rendering: Promise<string> | undefined;
  const sendJson = (res: HttpResponse, status: number, body: string | Uint8Array) =>
    send(res, status, { ...jsonHeaders }, body);
  const pages: Record<string, (req: HttpRequest, res: HttpResponse) => void> = {
    ...createReference(),
    "/healthz": (_, res) => sendJson(res, 200, '{"status":"alive"}'),
    "/readyz": (_, res) => {
      if (isReady()) sendJson(res, 200, '{"status":"ready"}');
      else sendJson(res, 503, '{"status":"not ready"}');
    },
    "/openapi.json": (_, res) => sendJson(res, 200, openApi),
  };

  async function sendMetrics(res: HttpResponse): Promise<void> {
    // Those who ask at once share one text.
    rendering ??= telemetry.metrics().finally(() => {
      rendering = undefined;
    });
    send(res, 200, { "content-type": telemetry.metricsType }, await rendering);
  }

  return (socket, req, res) => {
    const path = pathOf(req);
    const page = Object.hasOwn(pages, path) ? pages[path] : undefined;
    if (!page && path !== "/metrics") return undefined;
    if (req.method !== "GET" && req.method !== "HEAD") throw methodNotAllowed(req, "GET, HEAD");
    // No page is larger than 2 MiB.
    const timer = setTimeout(() => socket.destroy(), readTimeoutMs(2 ** 21));
    res.on("close", () => clearTimeout(timer));
    if (!page) return gate.authenticate(socket, req.headers).then(() => sendMetrics(res));
    page(req, res);
    return Promise.resolve();
  };
}
