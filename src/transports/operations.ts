import { type HttpHandler, pathOf } from "./http.ts";
import { openApi } from "./openapi.ts";
import { answerProblem, HttpError } from "./problem.ts";

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
      const error = new HttpError(405, `${req.method} is not allowed here`, { allow: "GET, HEAD" });
      answerProblem(res, error);
      return true;
    }
    const [status, body] = document();
    res.writeHead(status, {
      "content-type": "application/json",
      "content-length": Buffer.byteLength(body),
      "cache-control": "no-store",
    });
    res.end(body);
    return true;
  };
}
