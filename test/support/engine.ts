import type { ServiceImplSpec } from "@connectrpc/connect";
import { type Logger, pino } from "pino";
import { createGate, type Gate } from "../../src/calls/gate.ts";
import { createTelemetry } from "../../src/calls/telemetry.ts";
import { createTracing } from "../../src/calls/tracing.ts";
import { createConnections } from "../../src/http/connection-set.ts";
import { listen } from "../../src/http/listener.ts";
import type { Tls } from "../../src/http/tls.ts";
import { createRest } from "../../src/protocols/rest.ts";
import { createRouter } from "../../src/protocols/router.ts";

/** What {@link startEngine} serves; of limits, those of the service if absent. */
export interface EngineOptions {
  services: ServiceImplSpec[];
  /** Those that anybody may call; none if absent. */
  publicServices?: ServiceImplSpec[];
  /** Called with the gate before it is used. */
  onGate?(gate: Gate): void;
  tls?: Tls | undefined;
  log?: Logger;
  maxMessageBytes?: number;
  maxInFlight?: number;
  requestTimeoutMs?: number;
}

/** Serves services by the engine of the service on a port of this machine. */
export async function startEngine(options: EngineOptions) {
  const {
    services,
    publicServices = [],
    tls,
    log = pino({ level: "silent" }),
    requestTimeoutMs = 600_000,
    maxMessageBytes = 65_536,
    maxInFlight = 1_024,
  } = options;
  const connections = createConnections({ max: 1_000, maxAgeMs: undefined, onEnd() {} });
  const telemetry = createTelemetry(pino({ level: "silent" }), false);
  const logged = createTelemetry(log, false);
  const gate = createGate({
    maxInFlight,
    requestTimeoutMs,
    telemetry,
    logFault: logged.logFault,
    startSpan: createTracing(),
  });
  options.onGate?.(gate);
  const rests = services
    .filter(({ methods }) => methods.createInvestor !== undefined)
    .map((service) => createRest(service, gate));
  const routerOptions = {
    services,
    publicServices,
    gate,
    maxMessageBytes,
    corsOrigins: [],
    hosts: undefined,
    telemetry: logged,
  };
  const router = createRouter(routerOptions, rests);
  const { ports, close } = await listen({
    ...router,
    ...{ host: "127.0.0.1", ports: [0], tls, connections },
  });
  return {
    port: ports[0] ?? 0,
    gate,
    destroy() {
      close();
      connections.destroy();
    },
  };
}
