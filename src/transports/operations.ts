import { readFileSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { ConnectError } from "@connectrpc/connect";
import type { Gate } from "../calls/gate.ts";
import type { Telemetry } from "../calls/telemetry.ts";
import { answerJson, pathOf, toHead } from "./exchange.ts";
import type { HttpHandler } from "./http.ts";
import { answerProblem, HttpError, methodNotAllowed } from "./problem.ts";

/** What {@link createOperationsHandler} tells of. */
export interface OperationsOptions {
  isReady(): boolean;
  /** Asks for credentials before the metrics are shown. */
  gate: Gate;
  telemetry: Telemetry;
}

/** Serves what those who run the service and write clients need: its state and its reference. */
export function createOperationsHandler(options: OperationsOptions): HttpHandler {
  const { isReady, gate, telemetry } = options;
  const reference = readFileSync(new URL("../../proto/investor/v1/openapi.json", import.meta.url));
  type Handler = (req: IncomingMessage, res: ServerResponse) => void | Promise<void>;
  const handlers: Record<string, Handler> = {
    "/healthz": (_, res) => answerJson(res, '{"status":"alive"}'),
    "/readyz": (_, res) => {
      if (isReady()) answerJson(res, '{"status":"ready"}');
      else answerJson(res, '{"status":"not ready"}', 503);
    },
    "/openapi.json": (_, res) => answerJson(res, reference),
    "/metrics": async (req, res) => {
      await gate.identify(toHead(req, res));
      const metrics = await telemetry.metrics();
      res.writeHead(200, { "content-type": telemetry.metricsType });
      res.end(metrics);
    },
  };

  async function answer(handle: Handler, req: IncomingMessage, res: ServerResponse): Promise<void> {
    try {
      if (req.method !== "GET" && req.method !== "HEAD") throw methodNotAllowed(req, "GET, HEAD");
      await handle(req, res);
    } catch (error) {
      if (!(error instanceof ConnectError || error instanceof HttpError)) throw error;
      answerProblem(res, error);
    }
  }

  return (req, res) => {
    const handle = Object.hasOwn(handlers, pathOf(req)) && handlers[pathOf(req)];
    return handle ? answer(handle, req, res) : undefined;
  };
}
