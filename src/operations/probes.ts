import { readFileSync } from "node:fs";
import { packageFolder } from "../build.ts";
import type { Gate } from "../calls/gate.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import type { Exchange } from "../http/exchange.ts";
import { jsonHeaders, methodNotAllowed } from "../protocols/problem.ts";
import type { Handler } from "../protocols/router.ts";
import { createReference } from "./reference.ts";

/** What {@link createProbes} needs. */
interface ProbesOptions {
  isReady(): boolean;
  /** Asks for credentials before the metrics are shown. */
  gate: Gate;
  telemetry: Telemetry;
}

/** Serves the probes, the metrics, the OpenAPI document and the reference page. */
export function createProbes({ isReady, gate, telemetry }: ProbesOptions): Handler {
  const openApi = readFileSync(new URL("proto/investor/v1/openapi.json", packageFolder));
  let rendering: Promise<string> | undefined;
  const sendJson = (exchange: Exchange, status: number, body: string | Uint8Array) =>
    exchange.send(status, { ...jsonHeaders }, body);
  const probes: Record<string, (exchange: Exchange) => void | Promise<void>> = {
    ...createReference(),
    "/healthz": (exchange) => sendJson(exchange, 200, '{"status":"alive"}'),
    "/readyz": (exchange) => {
      if (isReady()) sendJson(exchange, 200, '{"status":"ready"}');
      else sendJson(exchange, 503, '{"status":"not ready"}');
    },
    "/openapi.json": (exchange) => sendJson(exchange, 200, openApi),
    "/metrics": async (exchange) => {
      await gate.identify(exchange);
      // Those who ask at once share one text.
      rendering ??= telemetry.metrics().finally(() => {
        rendering = undefined;
      });
      const metrics = await rendering;
      exchange.send(200, { "content-type": telemetry.metricsType }, metrics);
    },
  };

  return (exchange) => {
    const { path, method } = exchange;
    const probe = Object.hasOwn(probes, path) && probes[path];
    if (!probe) return undefined;
    exchange.usage.expectRoom();
    if (method === "GET" || method === "HEAD") return (async () => probe(exchange))();
    throw methodNotAllowed(exchange, "GET, HEAD");
  };
}
