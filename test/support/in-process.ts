import { join } from "node:path";
import { type Client, createClient, createRouterTransport } from "@connectrpc/connect";
import { onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createInvestorService } from "../../src/service/investors.ts";
import { createSqliteStore } from "../../src/store/sqlite.ts";
import type { Store } from "../../src/store/store.ts";
import { temporaryFolder } from "./folder.ts";

/** The service in this process, over an SQLite file of its own. */
interface InProcess {
  readonly client: Client<typeof InvestorService>;
  readonly store: Store;
}

/** Opens the service for the running test, and closes it after. */
export async function openService(): Promise<InProcess> {
  const store = await createSqliteStore(join(temporaryFolder(), "investors.db"), {
    observe() {},
    onWrite() {},
    onWarning() {},
    onFatal(error) {
      throw error;
    },
  });
  onTestFinished(() => store.close());
  return { client: serviceOver(store), store };
}

/** A client of the service in this process, over a store. */
export function serviceOver(
  store: Store,
  requestTimeoutMs = 10_000,
): Client<typeof InvestorService> {
  const transport = createRouterTransport((router) => {
    router.service(InvestorService, createInvestorService(store, { requestTimeoutMs }));
  });
  return createClient(InvestorService, transport);
}
