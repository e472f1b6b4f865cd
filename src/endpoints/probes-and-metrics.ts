import { readFileSync } from "node:fs";
import type { Gate } from "../calls/gate.ts";
import { createSlots } from "../calls/slots.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import type { Connection } from "../http/connection.ts";
import { type HttpResponse, prepareReply, send } from "../http/reply.ts";
import { type HttpRequest, pathOf } from "../http/request.ts";
import { limits } from "../limits.ts";
import { jsonHeaders, methodNotAllowed } from "../protocols/problem.ts";
import type { Handler } from "../protocols/router.ts";
import { packageFolder } from "../version.ts";
import { createReference } from "./reference.ts";

type Reply = (req: HttpRequest, res: HttpResponse, connection: Connection) => void | Promise<void>;

/**
 * Serves the probes, the metrics, the OpenAPI document and the reference page.
 *
 * @param hasReference whether there is the page, which is meant for the machine of a developer
 */
export function createProbesAndMetrics(
  isReady: () => boolean,
  gate: Gate,
  telemetry: Telemetry,
  hasReference: boolean,
): Handler {
  const openApi = readFileSync(new URL("proto/investor/v1/openapi.json", packageFolder));
  let rendering: Promise<string> | undefined;
  const metricsSlots = createSlots("requests for metrics", limits.metrics, limits.metricsOfCaller);
  const replies: Record<string, Reply> = {
    ...(hasReference && createReference()),
    "/openapi.json": (_, res) => send(res, 200, jsonHeaders, openApi),
    "/healthz": (_, res) => sendProbe(res, 200, "alive"),
    "/readyz": (_, res) =>
      isReady() ? sendProbe(res, 200, "ready") : sendProbe(res, 503, "not ready"),
    "/metrics": sendMetrics,
  };

  function sendProbe(res: HttpResponse, code: number, status: string) {
    send(res, code, jsonHeaders, `{"status":"${status}"}`);
  }

  async function sendMetrics(req: HttpRequest, res: HttpResponse, connection: Connection) {
    const closed = new Promise<void>((resolve) => res.once("close", resolve));
    try {
      const caller = await gate.authenticate(connection, req.headers);
      void closed.then(metricsSlots.acquire(caller?.principal ?? ""));
    } catch (error) {
      telemetry.noteRefusal(connection.peer.address, error);
      throw error;
    }
    // Concurrent requests share one text.
    rendering ??= telemetry.metrics().finally(() => {
      rendering = undefined;
    });
    send(res, 200, { "content-type": telemetry.metricsType }, await rendering);
  }

  return (connection, req, res) => {
    const path = pathOf(req);
    const reply = Object.hasOwn(replies, path) ? replies[path] : undefined;
    if (reply === undefined) return undefined;
    if (req.method !== "GET" && req.method !== "HEAD") throw methodNotAllowed(req, "GET, HEAD");
    prepareReply(connection, req, res);
    return Promise.resolve(reply(req, res, connection));
  };
}
