import { hash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { gzip } from "node:zlib";
import { type HttpResponse, send, sendInParts } from "../http/reply.ts";
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
const commonHeaders = {
  "cache-control": "no-cache",
  "content-security-policy": [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join("; "),
  "referrer-policy": "no-referrer",
  // All request headers that a reply can depend on.
  vary: "Accept-Encoding, Origin",
  "x-content-type-options": "nosniff",
};

/**
 * Creates the reference page, where people read the OpenAPI document and try the operations: one
 * handler per file. Files are read and compressed on first request, then kept: a library that
 * streams files leaves descriptors open when clients leave.
 */
export function createReference() {
  return Object.fromEntries(
    Object.entries(types).map(([path, type]) => [path, serve(path.slice(1) || "index.html", type)]),
  );
}

function serve(name: string, type: string) {
  let asset: ReturnType<typeof readAsset> | undefined;
  return async (req: HttpRequest, res: HttpResponse): Promise<void> => {
    const { headers } = req;
    asset ??= readAsset(name).catch((error) => {
      asset = undefined;
      throw error;
    });
    const { plain, packed, etag } = await asset;
    const known = headers["if-none-match"];
    if (known === "*" || known?.includes(etag.replace("W/", ""))) {
      send(res, 304, { ...commonHeaders, etag });
      return;
    }
    const isPacked = /\bgzip\b(?!\s*;\s*q=0)/.test(String(headers["accept-encoding"] ?? ""));
    const encoding = isPacked ? { "content-encoding": "gzip" } : {};
    const replyHeaders = { ...commonHeaders, ...encoding, etag, "content-type": type };
    await sendInParts(req, res, replyHeaders, isPacked ? packed : plain);
  };
}

async function readAsset(name: string) {
  const plain = await readFile(new URL(name, folder));
  // Weak, since both forms share it.
  const etag = `W/"${hash("sha256", plain, "base64url")}"`;
  return { plain, packed: await promisify(gzip)(plain), etag };
}
