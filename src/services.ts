import { createServiceImplSpec } from "@connectrpc/connect";
import { Health } from "../gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../gen/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "../gen/grpc/reflection/v1alpha/reflection_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { createHealth } from "./endpoints/health.ts";
import { createProbesAndMetrics } from "./endpoints/probes-and-metrics.ts";
import { createReflection } from "./endpoints/reflection.ts";
import { limits } from "./limits.ts";
import { createRest } from "./protocols/rest.ts";
import { createRouter, type RouterOptions } from "./protocols/router.ts";
import { createInvestorService } from "./service/investors.ts";
import type { Store } from "./store/store.ts";

type ServicesOptions = Pick<RouterOptions, "gate" | "telemetry" | "corsOrigins" | "hosts">;

/**
 * Creates what the ports serve.
 *
 * @param isReady what probes and health checks report
 */
export function createServices(store: Store, isReady: () => boolean, options: ServicesOptions) {
  const { gate, telemetry } = options;
  const maxMessageBytes = limits.requestBytes;
  const service = createServiceImplSpec<typeof InvestorService>(
    InvestorService,
    createInvestorService(store, limits.pagesAtOnce),
  );
  const health = createHealth([InvestorService.typeName], isReady);
  telemetry.show(
    "investor_records_ready",
    "Whether the service can read records (1) or not (0); same as /readyz.",
    () => Number(isReady()),
  );
  const reflection = createReflection();
  const probesAndMetrics = createProbesAndMetrics(
    isReady,
    gate,
    telemetry,
    options.hosts !== undefined,
  );
  const rest = createRest(service, { gate, maxMessageBytes });
  const routerOptions = {
    ...options,
    maxMessageBytes,
    services: [service],
    publicServices: [
      createServiceImplSpec<typeof Health>(Health, health),
      createServiceImplSpec<typeof ServerReflection>(ServerReflection, reflection),
      // Its messages differ only in their names.
      createServiceImplSpec<typeof ServerReflection>(ServerReflectionAlpha, reflection),
    ],
  };
  return createRouter(routerOptions, [probesAndMetrics, rest]);
}
