import { hash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { promisify } from "node:util";
import { gzip } from "node:zlib";
import type { Exchange } from "../http/exchange.ts";

/** A file as it is sent. */
interface Asset {
  plain: Buffer;
  packed: Buffer;
  /** Weak, since it stands for both. */
  etag: string;
}

const folder = new URL("./reference/", import.meta.url);

const script = "text/javascript; charset=utf-8";
const types = {
  "/": "text/html; charset=utf-8",
  "/reference.js": script,
  "/swagger-ui-bundle.js": script,
  // The script names it.
  "/swagger-ui-bundle.js.LICENSE.txt": "text/plain; charset=utf-8",
  "/swagger-ui.css": "text/css; charset=utf-8",
};

/** The page runs what comes from its own origin, and talks to no other. */
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
  // Of all that can differ by the request.
  vary: "Accept-Encoding, Origin",
  "x-content-type-options": "nosniff",
};

/**
 * What is sent at once, in bytes. If the whole script were, 400 clients on TLS that do not read
 * would hold 700 MB instead of 70.
 */
const chunkBytes = 64 * 1024;

/**
 * Creates the page on which people read the OpenAPI document and try the operations, by the path of
 * each of its files. A file is read and compressed when it is first asked for.
 */
export function createReference(): Record<string, (exchange: Exchange) => Promise<void>> {
  const serve = (name: string, type: string) => {
    let asset: Promise<Asset> | undefined;
    return async (exchange: Exchange) => {
      asset ??= readAsset(name).catch((error) => {
        asset = undefined;
        throw error;
      });
      await send(exchange, await asset, type);
    };
  };
  return Object.fromEntries(
    Object.entries(types).map(([path, type]) => [path, serve(path.slice(1) || "index.html", type)]),
  );
}

async function readAsset(name: string): Promise<Asset> {
  const plain = await readFile(new URL(name, folder));
  const digest = hash("sha256", plain, "base64url");
  return { plain, packed: await promisify(gzip)(plain), etag: `W/"${digest}"` };
}

async function send(exchange: Exchange, asset: Asset, type: string): Promise<void> {
  const { etag } = asset;
  const known = exchange.headers["if-none-match"];
  if (known === "*" || known?.includes(etag.replace("W/", ""))) {
    exchange.send(304, { ...commonHeaders, etag });
    return;
  }
  const isPacked = /\bgzip\b(?!\s*;\s*q=0)/.test(exchange.headers["accept-encoding"] ?? "");
  const body = isPacked ? asset.packed : asset.plain;
  const headers = {
    ...commonHeaders,
    etag,
    "content-type": type,
    "content-length": body.length,
    ...(isPacked && { "content-encoding": "gzip" }),
  };
  if (exchange.method === "HEAD") {
    exchange.send(200, headers);
    return;
  }
  await exchange.usage.reserve(chunkBytes);
  exchange.begin(200, headers);
  for (let start = 0; start < body.length; start += chunkBytes) {
    await exchange.write(body.subarray(start, start + chunkBytes));
  }
  exchange.end();
}
