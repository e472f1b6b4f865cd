/** Callers with credentials who do nothing wrong, on a thread that no attack slows down. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { secret, type Target, tokens } from "./target.ts";

/** How the good callers fared during an attack. */
export interface Figures {
  readonly calls: number;
  /** The protocol and the error of each call that failed. */
  readonly failures: string[];
  readonly p99Ms: number;
  /** The 99th percentile of how late the event loop of their own thread was. */
  readonly lateMs: number;
}

/** What the thread of the callers is given. */
export interface Destination {
  readonly grpcUrl: string;
  readonly httpUrl: string;
  readonly ca: string | undefined;
  readonly token: string;
  /** Goes into every record that they store. */
  readonly secret: string;
}

export type Callers = Awaited<ReturnType<typeof startCallers>>;

/** Starts callers on each protocol, who fill the database with two full pages and then wait. */
export async function startCallers({ kind, service, ca }: Target) {
  const scheme = kind === "TLS" ? "https" : "http";
  const workerData: Destination = {
    grpcUrl: `${scheme}://127.0.0.1:${service.grpcPort}`,
    httpUrl: `${scheme}://127.0.0.1:${service.httpPort}`,
    ca,
    token: tokens.good,
    secret,
  };
  const thread = new Worker(new URL("callers-thread.ts", import.meta.url), { workerData });
  await once(thread, "message");
  return {
    begin: () => thread.postMessage("begin"),
    /** Lets them go on until they have made this many calls, and returns their figures. */
    async end(minCalls: number): Promise<Figures> {
      thread.postMessage(minCalls);
      const [figures] = await once(thread, "message");
      return figures;
    },
    stop: () => thread.terminate(),
  };
}
