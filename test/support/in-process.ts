import { join } from "node:path";
import {
  type Client,
  createClient,
  createRouterTransport,
  createServiceImplSpec,
  type Interceptor,
  type ServiceImpl,
} from "@connectrpc/connect";
import { onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { Failure } from "../../src/failures.ts";
import { toConnectError } from "../../src/protocols/connect-error.ts";
import { deadlineKey } from "../../src/service/context.ts";
import { createInvestorService } from "../../src/service/investors.ts";
import type { Store } from "../../src/store/store.ts";
import { openSqlite } from "./copying.ts";
import { type EngineOptions, startEngine } from "./engine.ts";
import { temporaryFolder } from "./folder.ts";

/** Opens the service in this process for the running test, over an SQLite file of its own. */
export async function openService() {
  const store = await openSqlite(join(temporaryFolder(), "investors.db"));
  onTestFinished(() => store.close());
  return { client: serviceOver(store), store };
}

/** A client of the service in this process, over a store. */
export function serviceOver(
  store: Store,
  requestTimeoutMs = 600_000,
): Client<typeof InvestorService> {
  const asCall: Interceptor = (next) => async (req) => {
    req.contextValues.set(deadlineKey, performance.now() + requestTimeoutMs);
    try {
      return await next(req);
    } catch (error) {
      throw error instanceof Failure ? toConnectError(error) : error;
    }
  };
  const transport = createRouterTransport(
    (router) => void router.service(InvestorService, createInvestorService(store)),
    { router: { interceptors: [asCall] } },
  );
  return createClient(InvestorService, transport);
}

/** Implementations of methods of the service; others are UNIMPLEMENTED. */
export type Methods = Partial<ServiceImpl<typeof InvestorService>>;

/** Serves methods by the engine of the service until the end of the test. */
export async function serveMethods(methods: Methods, options: Omit<EngineOptions, "services">) {
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const engine = await startEngine({ services, ...options });
  onTestFinished(engine.destroy);
  return engine;
}
