import { answerJson, type HttpHandler, pathOf } from "./http.ts";
import { openApi } from "./openapi.ts";
import { answerProblem, methodNotAllowed } from "./problem.ts";

/** Serves what those who run the service and write clients need: its state and its reference. */
export function createOperationsHandler({ isReady }: { isReady(): boolean }): HttpHandler {
  const reference = JSON.stringify(openApi);
  const documents: Record<string, () => [status: number, body: string]> = {
    "/healthz": () => [200, '{"status":"alive"}'],
    "/readyz": () => (isReady() ? [200, '{"status":"ready"}'] : [503, '{"status":"not ready"}']),
    "/openapi.json": () => [200, reference],
  };

  return (req, res) => {
    const document = Object.hasOwn(documents, pathOf(req)) && documents[pathOf(req)];
    if (!document) return false;
    if (req.method !== "GET" && req.method !== "HEAD") {
      answerProblem(res, methodNotAllowed(req, "GET, HEAD"));
      return true;
    }
    const [status, body] = document();
    answerJson(res, body, status);
    return true;
  };
}
