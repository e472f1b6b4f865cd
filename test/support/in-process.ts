import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { type EngineOptions, startEngine } from "./engine.ts";

/** Implementations of methods of the service; others are UNIMPLEMENTED. */
export type Methods = Partial<ServiceImpl<typeof InvestorService>>;

/** Serves methods by the engine of the service until the end of the test. */
export async function serveMethods(methods: Methods, options: Omit<EngineOptions, "services">) {
  const services = [createServiceImplSpec<typeof InvestorService>(InvestorService, methods)];
  const engine = await startEngine({ services, ...options });
  onTestFinished(engine.destroy);
  return engine;
}
