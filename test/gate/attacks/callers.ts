/** Callers with credentials who do nothing wrong, on a thread that no attack slows down. */
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import type { Target } from "./target.ts";

/** How the good callers fared during an attack. */
export interface Figures {
  readonly calls: number;
  /** The protocol and the error of each call that failed. */
  readonly failures: string[];
  readonly p99Ms: number;
}

/** Starts callers on each protocol, who wait. */
export function startCallers({ addresses: workerData }: Target) {
  const thread = new Worker(new URL("callers-thread.ts", import.meta.url), { workerData });
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
