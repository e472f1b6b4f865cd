import { setTimeout as delay } from "node:timers/promises";
import { type Document, MongoServerError } from "mongodb";
import type { StoreOptions } from "../store.ts";
import { createMongoClient, type RunOptions } from "./client.ts";
import { code, explain, isUserRefused, unavailable } from "./errors.ts";

/** The least time between two new clients for one that is not authorized, in milliseconds. */
const renewalMs = 5_000;

/** How often the URL is read again while the user is refused, in milliseconds. */
const rereadMs = 100;

/**
 * Creates the client of a store, which another can replace while commands run. Its commands take little
 * more than `attemptMs` each.
 *
 * @throws {DatabaseUrlError} the URL cannot be used; the message has no values of it
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
    // Its commands have ended by then, each of which takes less than a call may.
    const close = () => client.close().then(() => clients.delete(client));
    setTimeout(close, requestTimeoutMs).unref();
  }

  /** A user that was dropped and made again is unknown on the connections that it had. */
  function renew(): void {
    if (performance.now() - renewedAt < renewalMs) return;
    renewedAt = performance.now();
    // If that fails, calls say why.
    replace().catch(() => {});
  }

  return {
    /** The one in use, which is another after {@link replace}. */
    get current() {
      return current;
    },
    /** @throws {StoreUnavailableError} it cannot be reached or refuses the user */
    async connect(): Promise<void> {
      try {
        await current.connect();
      } catch (error) {
        if (isUserRefused(error)) await rereadUrl?.();
        throw unavailable(error as Error);
      }
    },
    /** Runs a command. While the user is refused, which sends nothing, it reads the URL again and retries. */
    async run(command: Document, options: RunOptions = {}): Promise<Document> {
      const until = performance.now() + 2 * attemptMs;
      for (;;) {
        try {
          return await current.run(command, options);
        } catch (error) {
          if (error instanceof MongoServerError && error.code === code.unauthorized) renew();
          const isTimeUp = performance.now() > until;
          // A session is of one client.
          const isLast = isTimeUp || options.session !== undefined;
          if (rereadUrl === undefined || !isUserRefused(error) || isLast) throw error;
          await rereadUrl();
          await delay(rereadMs);
        }
      }
    },
    /**
     * Connects anew, by the files as they are now and perhaps another URL of the same database.
     *
     * @throws {Error} for operators to read, if it cannot; the client before stays in use
     */
    replace,
    /** Closes it, and those before it. */
    async close(): Promise<void> {
      await Promise.all(Array.from(clients, (client) => client.close()));
    },
  };
}
