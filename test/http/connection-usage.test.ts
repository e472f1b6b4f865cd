import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { expect, it, onTestFinished } from "vitest";
import { ConnectionUsage, exchangeBytes } from "../../src/http/connection-usage.ts";
import { ExchangeUsage } from "../../src/http/exchange-usage.ts";
import { createHttp1 } from "../../src/http/http1.ts";
import { TotalUsage } from "../../src/http/total-usage.ts";

const mebibyte = 1024 * 1024;
const options = { isMemoryShort: () => false, onFlood() {}, onGrowth() {} };

it("lets go on what waits after a reply that is waited for no more", () => {
  const usage = new ConnectionUsage(new TotalUsage(options));
  const going: string[] = [];
  usage.unsent.acquire(3 * mebibyte, () => going.push("first"));
  const giveUp = usage.unsent.acquire(2 * mebibyte, () => going.push("large"));
  usage.unsent.acquire(mebibyte, () => going.push("small"));
  expect(going).toEqual(["first"]);
  giveUp();
  expect(going).toEqual(["first", "small"]);
});

it("makes no reply for a call that has one while it waits for its turn", async () => {
  const total = new TotalUsage(options);
  const usage = new ExchangeUsage(new ConnectionUsage(total), {} as Socket, []);
  const all = 16 * mebibyte;
  total.making.acquire("one", all, () => {});
  let isMade = false;
  usage.authorise("two");
  usage.beginMaking(mebibyte).then(() => {
    isMade = true;
  });
  usage.keepReply(100);
  total.making.release(all);
  await new Promise<void>((resolve) => total.making.acquire("three", all, resolve));
  expect(isMade).toBe(false);
});

it("leaves room for those whose calls were admitted, whatever others leave unread", () => {
  const total = new TotalUsage(options);
  const [stranger, caller] = [new ConnectionUsage(total), new ConnectionUsage(total)];
  caller.authorise("");
  stranger.keep(20 * mebibyte);
  caller.keep(mebibyte);
  expect(stranger.isCrowded).toBe(true);
  expect(caller.isCrowded).toBe(false);
  expect([stranger.canTake(mebibyte), caller.canTake(mebibyte)]).toEqual([false, true]);
});

it.each([
  [false, [true, false]],
  [true, [false, false]],
])("bounds what callers leave unread, more tightly if memory is short: %s", (isShort, canTake) => {
  const total = new TotalUsage({ ...options, isMemoryShort: () => isShort });
  const usage = new ConnectionUsage(total);
  usage.authorise("");
  usage.keep(40 * mebibyte);
  const canTakeAt40 = usage.canTake(mebibyte);
  usage.keep(24 * mebibyte);
  expect([canTakeAt40, usage.canTake(mebibyte)]).toEqual(canTake);
});

it("counts all of a target in absolute form, which Node.js keeps", async () => {
  const total = new TotalUsage(options);
  const { promise: kept, resolve } = Promise.withResolvers<number>();
  const http1 = createHttp1({ requestTimeoutMs: 5_000, serve: () => resolve(total.kept) });
  const server = createServer((socket) => void http1.accept(socket, new ConnectionUsage(total)));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  onTestFinished(() => {
    client.destroy();
    http1.close();
    server.close();
  });
  const target = `http://${"a".repeat(10_000)}/`;
  client.write(`GET ${target} HTTP/1.1\r\nhost: a\r\n\r\n`);
  expect(await kept).toBeGreaterThan(exchangeBytes + target.length);
});
