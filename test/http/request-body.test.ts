import type { Socket } from "node:net";
import { PassThrough } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { expect, it } from "vitest";
import { ConnectionUsage } from "../../src/http/connection-usage.ts";
import { ExchangeUsage } from "../../src/http/exchange-usage.ts";
import { RequestBody } from "../../src/http/request-body.ts";
import { TotalUsage } from "../../src/http/total-usage.ts";
import { failureOf } from "../support/errors.ts";

const mebibyte = 1024 * 1024;

/** A body that is held, of which so many bytes have come. */
async function hold(bytes: number) {
  const total = new TotalUsage({ isMemoryShort: () => false, onFlood() {}, onGrowth() {} });
  const usage = new ExchangeUsage(new ConnectionUsage(total), {} as Socket, []);
  const request = new PassThrough({ highWaterMark: mebibyte });
  const body = new RequestBody(request, usage);
  body.buffer();
  total.keep(17 * mebibyte);
  request.write(Buffer.alloc(bytes));
  await delay(10);
  return { body, request, usage };
}

it("a body that came before its caller was known is his who was", async () => {
  const { body, request, usage } = await hold(40_000);
  request.end();
  usage.authorise("");
  expect(await body.readAll(65_536, 0)).toHaveLength(40_000);
});

it("a body that comes while strangers keep too much is refused", async () => {
  const { body, request } = await hold(40_000);
  const reading = body.readAll(65_536, 0);
  request.end(Buffer.alloc(10));
  expect(await failureOf(reading)).toMatchObject({ reason: "OVERLOADED" });
});

it("a body that came before is no larger than it may be", async () => {
  const { body, request, usage } = await hold(5_000);
  usage.authorise("");
  request.end();
  await delay(10);
  const failure = await failureOf(body.readAll(4_096, 5));
  expect(failure).toMatchObject({ reason: "MESSAGE_TOO_LARGE" });
});

it("a body of which a part was dropped is never taken for whole", async () => {
  for (const read of ["readAll", "readChunks"] as const) {
    const { body, request, usage } = await hold(80_000);
    usage.authorise("");
    request.end(Buffer.alloc(10));
    const reading = read === "readAll" ? body.readAll(200_000, 0) : body.readChunks().next();
    const reason = read === "readAll" ? "MESSAGE_TOO_LARGE" : "OVERLOADED";
    expect(await failureOf(reading), read).toMatchObject({ reason });
  }
});
