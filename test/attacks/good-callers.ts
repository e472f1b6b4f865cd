/** Callers who do nothing wrong, on a thread of their own so that no attack slows them down. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { type Target, tokens } from "./target.ts";

/** What they need to know. */
export interface GoodCallersData {
  readonly grpcUrl: string;
  readonly httpUrl: string;
  /** Undefined without TLS. */
  readonly ca: string | undefined;
  /** Undefined where nobody is asked for one. */
  readonly token: string | undefined;
}

/** How they fared. */
export interface Outcome {
  readonly calls: number;
  /** The protocol and the error of each call that failed. */
  readonly failures: string[];
  /** How long the slowest of a hundred calls took, in ms. */
  readonly p99Ms: number;
}

/** Callers by every protocol, each on a connection of its own that stays open. */
export interface GoodCallers {
  /** Lets them call, one call after the other. */
  begin(): void;
  /** Lets them make so many calls in all, finish, and tell how they fared since they began. */
  end(calls: number): Promise<Outcome>;
  stop(): Promise<void>;
}

/** Starts callers of a service, who wait. */
export async function startGoodCallers({ service, ca }: Target): Promise<GoodCallers> {
  const scheme = ca === undefined ? "http" : "https";
  const workerData: GoodCallersData = {
    grpcUrl: `${scheme}://127.0.0.1:${service.grpcPort}`,
    httpUrl: `${scheme}://127.0.0.1:${service.httpPort}`,
    ca,
    token: ca === undefined ? undefined : tokens.good,
  };
  const thread = new Worker(new URL("good-callers-thread.ts", import.meta.url), { workerData });
  await once(thread, "message");
  return {
    begin: () => thread.postMessage("begin"),
    async end(calls) {
      thread.postMessage(calls);
      const [outcome] = await once(thread, "message");
      return outcome;
    },
    async stop() {
      await thread.terminate();
    },
  };
}
