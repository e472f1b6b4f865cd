import { readFile } from "node:fs/promises";
import { type HttpResponse, send } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";

const folder = new URL("./reference/", import.meta.url);

const script = "text/javascript; charset=utf-8";
const types = {
  "/": "text/html; charset=utf-8",
  "/reference.js": script,
  "/swagger-ui-bundle.js": script,
  // The script refers to this file.
  "/swagger-ui-bundle.js.LICENSE.txt": "text/plain; charset=utf-8",
  "/swagger-ui.css": "text/css; charset=utf-8",
};

/** The page may load and call only its own origin. */
const headers = {
  "cache-control": "no-store",
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff",
};

/**
 * Creates the reference page, where developers read the OpenAPI document and try the operations on
 * their own machine: one handler per file.
 */
export function createReference() {
  return Object.fromEntries(
    Object.entries(types).map(([path, type]) => {
      const file = new URL(path.slice(1) || "index.html", folder);
      const reply = async (_: HttpRequest, res: HttpResponse) =>
        send(res, 200, { ...headers, "content-type": type }, await readFile(file));
      return [path, reply];
    }),
  );
}
