import { type Document, MongoServerError, MongoWriteConcernError } from "mongodb";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import { OutcomeUnknownError, type Store, StoreUnavailableError } from "../../src/store/store.ts";
import type { Command } from "./simulated-world.ts";

/** Makes the product wrong, from outside: by what it sends, or is told, or tells. */
export interface Mutant {
  command(command: Command): Command;
  store(store: Store): Store;
}

const unchanged: Mutant = { command: (command) => command, store: (store) => store };

/** The product as it is. */
export const original = () => unchanged;

/**
 * Each mutant by name, the contradictions that show it, and by how many seeds it is found; if
 * that is absent, by the orders of a few steps, since it takes several thousand seeds.
 */
export const mutants: Record<string, { create(): Mutant; shows: RegExp; within?: number }> = {
  "gets without a fence": {
    create: () => ofReads((c) => !c.sort, unfenced),
    shows: /^find: .* is missing/,
  },
  "pages without a fence": {
    create: () => ofReads((c) => c.sort, unfenced),
    shows: /^list: .* is missing/,
  },
  "pages with a fence beside them": {
    create: () =>
      ofReads(
        (c) => c.sort,
        async (command, c, options) => {
          const fence = command({ ...c, filter: {}, limit: 1 }, options);
          const [page] = await Promise.all([unfenced(command, c, options), fence]);
          return page;
        },
      ),
    shows: /^list: .* is missing/,
  },
  "a write concern error taken for success": {
    create: () => ({
      ...unchanged,
      command: (command) => async (c, options) =>
        command(c, options).catch((error) => {
          if (error instanceof MongoWriteConcernError) return error.result;
          throw error;
        }),
    }),
    within: 500,
    shows: /is missing|is no duplicate|was .* and is/,
  },
  "the code of a write concern error taken for that of a refusal": {
    create: () => ({
      ...unchanged,
      command: (command) => async (c, options) =>
        command(c, options).catch((error) => {
          throw error instanceof MongoWriteConcernError
            ? new MongoServerError({ ok: 0, code: error.code })
            : error;
        }),
    }),
    within: 1_000,
    shows: /was not written and is there/,
  },
  "a duplicate on a replay taken for success": {
    create() {
      const sent = new Set<string>();
      const command = (command: Command): Command => {
        return async (c, options) => {
          const isReplay = keysOf(c).map((key) => sent.has(key));
          for (const key of keysOf(c)) sent.add(key);
          const reply = await command(c, options);
          const stays = (error: Document) => error.code !== 11_000 || !isReplay[error.index];
          return c.insert ? { ...reply, writeErrors: reply.writeErrors.filter(stays) } : reply;
        };
      };
      return { ...unchanged, command };
    },
    within: 2_000,
    shows: /was .* and is/,
  },
  "no replay": {
    create: () =>
      tellingEarly((error, isReplay) =>
        isReplay || isRefusal(error) ? undefined : new OutcomeUnknownError("open"),
      ),
    within: 100,
    shows: /was left open too soon/,
  },
  "a replay that was refused taken for an insert that was": {
    create: () =>
      tellingEarly((error, isReplay) =>
        isReplay && isRefusal(error) ? new StoreUnavailableError("refused") : undefined,
      ),
    within: 300,
    shows: /was not written and is there/,
  },
};

type Read = (command: Command, c: Document, options: { signal: AbortSignal }) => Promise<Document>;

function ofReads(which: (command: Document) => boolean, read: Read): Mutant {
  return {
    ...unchanged,
    command: (command) => (c, options) =>
      c.find && c.readConcern.level === "linearizable" && which(c)
        ? read(command, c, options)
        : command(c, options),
  };
}

function unfenced(...[command, c, options]: Parameters<Read>): Promise<Document> {
  return command({ ...c, readConcern: { level: "majority" } }, options);
}

/** Tells callers what one attempt of their insert has met. */
function tellingEarly(tell: (error: unknown, isReplay: boolean) => Error | undefined): Mutant {
  const sent = new Set<string>();
  const waiting = new Map<string, (error: Error) => void>();
  return {
    command: (command) => async (c, options) => {
      const keys = keysOf(c);
      const isReplay = keys.some((key) => sent.has(key));
      for (const key of keys) sent.add(key);
      return command(c, options).catch((error) => {
        const told = tell(error, isReplay);
        if (told) for (const key of keys) waiting.get(key)?.(told);
        throw error;
      });
    },
    store: (store) => ({
      ...store,
      insert(investor, signal) {
        const early = new Promise<void>((_, reject) => waiting.set(keyOf(investor), reject));
        return Promise.race([store.insert(investor, signal), early]);
      },
    }),
  };
}

function isRefusal(error: unknown): boolean {
  return (
    error instanceof Error &&
    (/ServerSelection|WaitQueue/.test(error.name) ||
      (error.name === "MongoServerError" && "code" in error && error.code === 10_107))
  );
}

function keysOf(command: Document): string[] {
  return (command.documents ?? []).map((document: Document) =>
    keyOf({ id: document._id.toString("hex"), firstName: document.firstName }),
  );
}

function keyOf({ id, firstName }: Pick<Investor, "id" | "firstName">): string {
  return `${id.replaceAll("-", "")} ${firstName}`;
}
