import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, it } from "vitest";
import { FairQueue } from "../../src/http/fair-queue.ts";

it("gives callers turns, and the amounts that one caller asks for", async () => {
  const queue = new FairQueue(1, 1, 1);
  const begun: string[] = [];
  const work = (caller: string, amount: number, name: string) =>
    queue.acquire(caller, amount, () => {
      begun.push(name);
      queueMicrotask(() => queue.release(amount));
    });
  for (let i = 0; i < 4; i += 1) work("greedy", 1, `greedy ${i}`);
  work("greedy", 0.5, "small");
  work("other", 1, "other");
  while (begun.length < 6) await nextTurn();
  expect(begun).toEqual(["greedy 0", "greedy 1", "small", "other", "greedy 2", "greedy 3"]);
});

it.each([1, 4])("gives as much to what is small as to what is large, such as %i", async (large) => {
  const queue = new FairQueue(large, 1, 1);
  let begun = "";
  const work = (amount: number, name: string) =>
    queue.acquire("", amount, () => {
      begun += name;
      queueMicrotask(() => queue.release(amount));
    });
  for (let i = 0; i < 3; i += 1) work(large, "L");
  for (let i = 0; i < 16; i += 1) work(large / 8, "s");
  while (begun.length < 19) await nextTurn();
  expect(begun).toBe("LLssssssssLssssssss");
});

it("gives as much to who waits with one at a time as to who waits with many", async () => {
  const queue = new FairQueue(4, 4, 1);
  const had = { one: 0, many: 0 };
  const ask = (caller: "one" | "many", amount: number) =>
    queue.acquire(caller, amount, () => {
      had[caller] += amount;
      queueMicrotask(() => {
        queue.release(amount);
        ask(caller, amount);
      });
    });
  ask("one", 4);
  for (let i = 0; i < 16; i += 1) ask("many", 0.5);
  while (had.one + had.many < 200) await nextTurn();
  expect(had.one / had.many).toBeGreaterThan(0.8);
  expect(had.one / had.many).toBeLessThan(1.25);
});

it.each([
  [1, 0],
  [5, 10],
])("begins no more for %i turns after work of %i ms", async (least, ms) => {
  const queue = new FairQueue(8, 1, 1);
  let begun = 0;
  for (let i = 0; i < 5; i += 1) {
    queue.acquire("", 1, () => {
      begun += 1;
      const end = performance.now() + ms;
      while (performance.now() < end);
      queueMicrotask(() => queue.release(1));
    });
  }
  let turns = 0;
  for (; begun < 5; turns += 1) await nextTurn();
  expect(turns).toBeGreaterThanOrEqual(4 * least);
});

it("does no more at once than it may", async () => {
  const queue = new FairQueue(2, 8, 1);
  let begun = 0;
  for (let i = 0; i < 4; i += 1) {
    queue.acquire("", 1, () => {
      begun += 1;
    });
  }
  expect(begun).toBe(2);
  queue.release(1);
  expect(begun).toBe(3);
});

it("goes on after those who stop waiting, and gives them nothing", async () => {
  const queue = new FairQueue(2, 2, 1);
  const begun: string[] = [];
  queue.acquire("one", 2, () => begun.push("first"));
  const stop = queue.acquire("two", 2, () => begun.push("stopped"));
  queue.acquire("three", 1, () => begun.push("last"));
  stop();
  stop();
  queue.release(2);
  while (begun.length < 2) await nextTurn();
  expect(begun).toEqual(["first", "last"]);
});
