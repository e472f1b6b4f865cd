import { createServiceImplSpec, type ServiceImpl, type ServiceImplSpec } from "@connectrpc/connect";
import { type Logger, pino } from "pino";
import { Health } from "../../gen/grpc/health/v1/health_pb.js";
import { ServerReflection } from "../../gen/grpc/reflection/v1/reflection_pb.js";
import type { Gate } from "../../src/calls/gate.ts";
import { createConnections } from "../../src/http/connections.ts";
import { type Listener, type ListenerOptions, startListener } from "../../src/http/listener.ts";
import { createRest } from "../../src/protocols/rest.ts";
import { createRouter } from "../../src/protocols/router.ts";
import { createRpc } from "../../src/protocols/rpc.ts";

/** What {@link startEngine} serves; of limits, those of the service if absent. */
export interface EngineOptions
  extends Partial<Pick<ListenerOptions, "tls" | "port" | "maxConnectionAgeMs">> {
  /** The versions of HTTP, as the two ports of the service have them. */
  versions: ListenerOptions["versions"];
  services: ServiceImplSpec[];
  gate: Gate;
  log?: Logger;
  health?: ServiceImpl<typeof Health>;
  reflection?: ServiceImpl<typeof ServerReflection>;
  maxMessageBytes?: number;
  requestTimeoutMs?: number;
  maxConnections?: number;
  /** Tells the memory of the process. */
  memoryBytes?: () => number;
}

/** Serves services by the engine of the service on a port of this machine. */
export async function startEngine(options: EngineOptions): Promise<Listener> {
  const {
    services,
    gate,
    health,
    reflection,
    requestTimeoutMs = 5_000,
    maxMessageBytes = 65_536,
  } = options;
  const publicServices = [
    ...(health ? [createServiceImplSpec<typeof Health>(Health, health)] : []),
    ...(reflection
      ? [createServiceImplSpec<typeof ServerReflection>(ServerReflection, reflection)]
      : []),
  ];
  const rpc = createRpc({ services, publicServices, gate, maxMessageBytes });
  const rests = services
    .filter(({ methods }) => methods.createInvestor !== undefined)
    .map((service) => createRest(service, { gate, maxMessageBytes }));
  return startListener({
    host: "127.0.0.1",
    port: 0,
    ...options,
    requestTimeoutMs,
    connections: createConnections(options.maxConnections ?? 1_000, options.memoryBytes),
    serve: createRouter({
      handlers: [rpc, ...rests],
      corsOrigins: [],
      hosts: undefined,
      log: options.log ?? pino({ level: "silent" }),
    }),
  });
}
