import { setTimeout as delay } from "node:timers/promises";
import { type Document, MongoServerError } from "mongodb";
import type { StoreOptions } from "../store.ts";
import { createMongoClient, type RunOptions } from "./client.ts";
import { code, explain, isUserRefused, unavailable } from "./errors.ts";

/** Minimum interval between new clients made because a command was not authorized, in milliseconds. */
const renewalMs = 5_000;

/** Interval of re-reading the URL while the user is rejected, in milliseconds. */
const rereadMs = 100;

/**
 * Creates a store's client, which can be replaced while commands run. Each command takes little
 * more than `attemptMs`.
 *
 * @throws {DatabaseUrlError} the URL cannot be used; the message repeats no value of it
 */
export function createReplaceableClient(
  url: string,
  attemptMs: number,
  { requestTimeoutMs, rereadUrl }: Pick<StoreOptions, "requestTimeoutMs" | "rereadUrl">,
) {
  let currentUrl = url;
  let current = createMongoClient(url, attemptMs);
  const clients = new Set([current.client]);
  let renewedAt = Number.NEGATIVE_INFINITY;

  async function replace(nextUrl = currentUrl): Promise<void> {
    const next = createMongoClient(nextUrl, attemptMs);
    if (next.target !== current.target) throw new Error("it names another database");
    clients.add(next.client);
    try {
      await next.connect();
    } catch (error) {
      await next.client.close();
      clients.delete(next.client);
      throw new Error(explain(error as Error));
    }
    const { client } = current;
    current = next;
    currentUrl = nextUrl;
    // No call, and so no command of the old client, lasts longer than this.
    const close = () => client.close().then(() => clients.delete(client));
    setTimeout(close, requestTimeoutMs).unref();
  }

  /** Connections do not recognize their user once it was dropped and created again: opens new ones. */
  function renew(): void {
    if (performance.now() - renewedAt < renewalMs) return;
    renewedAt = performance.now();
    // If it fails, calls report why.
    replace().catch(() => {});
  }

  return {
    /** The client in use, which {@link replace} changes. */
    get current() {
      return current;
    },
    /** @throws {StoreUnavailableError} the server cannot be reached or rejects the user */
    async connect(): Promise<void> {
      try {
        await current.connect();
      } catch (error) {
        if (isUserRefused(error)) await rereadUrl?.();
        throw unavailable(error as Error);
      }
    },
    /** Runs a command. While the user is rejected, in which case nothing was sent, re-reads the URL and retries. */
    async run(command: Document, options: RunOptions = {}): Promise<Document> {
      const until = performance.now() + 2 * attemptMs;
      for (;;) {
        try {
          return await current.run(command, options);
        } catch (error) {
          if (error instanceof MongoServerError && error.code === code.unauthorized) renew();
          const isTimeUp = performance.now() > until;
          // A session is bound to its client.
          const isLast = isTimeUp || options.session !== undefined;
          if (rereadUrl === undefined || !isUserRefused(error) || isLast) throw error;
          await rereadUrl();
          await delay(rereadMs);
        }
      }
    },
    /**
     * Reconnects with the files as they are now, and optionally another URL of the same database.
     *
     * @throws {Error} for operators, if connecting fails; the old client stays in use
     */
    replace,
    /** Closes the client, and those it replaced. */
    async close(): Promise<void> {
      await Promise.all(Array.from(clients, (client) => client.close()));
    },
  };
}
