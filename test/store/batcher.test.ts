import { setImmediate as nextTurn } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { Batcher } from "../../src/store/batcher.ts";

/** A database that answers a batch when it is told to, each item with its own name. */
function createDatabase() {
  const batches: { items: string[]; answer: PromiseWithResolvers<(string | Error)[]> }[] = [];
  const batcher = new Batcher<string, string>({
    run(items) {
      const answer = Promise.withResolvers<(string | Error)[]>();
      batches.push({ items, answer });
      return answer.promise;
    },
    observe() {},
    abandoned: (cause) => new Error("abandoned", { cause }),
  });
  const answerNext = async () => {
    const batch = batches.shift();
    batch?.answer.resolve(batch.items.map((item) => item.toUpperCase()));
    await nextTurn();
    return batch?.items;
  };
  return { batcher, batches, answerNext };
}

describe("the batcher", () => {
  it("gathers items while a batch is under way, and sends 512 at most", async () => {
    const { batcher, answerNext } = createDatabase();
    const items = Array.from({ length: 600 }, (_, i) => `item ${i}`);
    const results = items.map((item) => batcher.add(item));
    expect(await answerNext()).toEqual(items.slice(0, 1));
    expect(await answerNext()).toEqual(items.slice(1, 513));
    expect(await answerNext()).toEqual(items.slice(513));
    expect(await Promise.all(results)).toEqual(items.map((item) => item.toUpperCase()));
  });

  it("settles each item on its own", async () => {
    const { batcher, batches, answerNext } = createDatabase();
    const first = batcher.add("a");
    const good = batcher.add("b");
    const bad = batcher.add("c");
    await answerNext();
    batches[0]?.answer.resolve(["B", new Error("c is bad")]);
    expect(await first).toBe("A");
    expect(await good).toBe("B");
    await expect(bad).rejects.toThrow("c is bad");
  });

  it("waits for a promised result with its own item alone", async () => {
    const promised = Promise.withResolvers<string>();
    const left = Promise.withResolvers<string>();
    const batcher = new Batcher<string, string>({
      run: async (items) =>
        items.map((item) => (item === "a" ? promised.promise : item === "b" ? left.promise : item)),
      observe() {},
      abandoned: (cause) => cause,
    });
    const controller = new AbortController();
    const a = batcher.add("a");
    const b = batcher.add("b", controller.signal);
    expect(await batcher.add("c")).toBe("c");
    const reason = new Error("the caller left");
    controller.abort(reason);
    await expect(b).rejects.toBe(reason);
    left.reject(new Error("nobody waits for it"));
    promised.resolve("A");
    expect(await a).toBe("A");
  });

  it("fails every item of a batch that fails, and goes on", async () => {
    const { batcher, batches, answerNext } = createDatabase();
    const first = batcher.add("a");
    const second = batcher.add("b");
    batches.shift()?.answer.reject(new Error("the database is gone"));
    await expect(first).rejects.toThrow("the database is gone");
    await answerNext();
    expect(await second).toBe("B");
  });

  it("takes an aborted item back while it waits", async () => {
    const { batcher, answerNext } = createDatabase();
    const controller = new AbortController();
    batcher.add("a");
    const left = batcher.add("b", controller.signal);
    batcher.add("c");
    controller.abort(new Error("the caller left"));
    await expect(left).rejects.toThrow("the caller left");
    await answerNext();
    expect(await answerNext()).toEqual(["c"]);
  });

  it("sends no batch before the one before it has ended, whoever has left", async () => {
    const { batcher, batches, answerNext } = createDatabase();
    const controller = new AbortController();
    const left = batcher.add("a", controller.signal);
    const next = batcher.add("b");
    controller.abort(new Error("the caller left"));
    await expect(left).rejects.toThrow("abandoned");
    expect(batches).toHaveLength(1);
    await answerNext();
    expect(await answerNext()).toEqual(["b"]);
    expect(await next).toBe("B");
  });

  it("takes nothing out of the queue before a batch can be sent", async () => {
    const sent: string[][] = [];
    const ready = Promise.withResolvers<void>();
    const batcher = new Batcher<string, string>({
      ready: () => ready.promise,
      async run(items) {
        sent.push(items);
        return items;
      },
      observe() {},
      abandoned: () => new Error("abandoned"),
    });
    const controller = new AbortController();
    const left = batcher.add("a", controller.signal);
    controller.abort(new Error("the caller left"));
    await expect(left).rejects.toThrow("the caller left");
    const kept = [batcher.add("b"), batcher.add("c")];
    ready.resolve();
    expect(await Promise.all(kept)).toEqual(["b", "c"]);
    expect(sent).toEqual([["b", "c"]]);
  });

  it("fails all that wait if no batch can be sent, and tries anew for the next", async () => {
    const unready = [Promise.reject(new Error("no connection"))];
    const batcher = new Batcher<string, string>({
      ready: () => unready.pop() ?? Promise.resolve(),
      run: async (items) => items,
      observe() {},
    });
    const waiting = [batcher.add("a"), batcher.add("b")];
    for (const each of waiting) await expect(each).rejects.toThrow("no connection");
    expect(await batcher.add("c")).toBe("c");
  });
});
