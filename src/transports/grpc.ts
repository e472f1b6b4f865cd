import { createServer, type Server as Listener } from "node:net";
import { createServer as createTlsServer } from "node:tls";
import { type DescFile, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import type { ServiceImplSpec } from "@connectrpc/connect";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import { ReflectionService } from "@grpc/reflection";
import { HealthImplementation } from "grpc-health-check";
import type { Logger } from "pino";
import { file_grpc_health_v1_health } from "../../gen/grpc/health/v1/health_pb.js";
import type { Gate } from "../calls/gate.ts";
import { toGrpcService } from "./grpc-adapter.ts";
import { createGateInterceptor } from "./grpc-gate.ts";
import { listen } from "./listen.ts";
import { closeWhenGone, type Tls } from "./tls.ts";

/** What a {@link startGrpcServer gRPC server} serves, and within which limits. */
export interface GrpcServerOptions {
  /** The services, which health and reflection tell of too. */
  services: ServiceImplSpec[];
  /** Files that reflection shows besides those of the services, such as of error details. */
  reflectedFiles: DescFile[];
  gate: Gate;
  /** Encrypts the connections; they are not if absent. */
  tls?: Tls | undefined;
  host: string;
  /** 0 picks a free port. */
  port: number;
  /** The largest message to take, decompressed, in bytes. */
  maxMessageBytes: number;
  /** Timeout of the request of a unary call, in milliseconds. */
  requestTimeoutMs: number;
  /** After how long a client is asked to connect anew, in milliseconds; never if absent. */
  maxConnectionAgeMs?: number | undefined;
  /** Is told of faults. */
  log: Logger;
}

/** A running gRPC server. */
export interface GrpcServer {
  readonly port: number;
  /** Sets what health says of every service. */
  setServing(isServing: boolean): void;
  /** Takes no new connections or calls; resolves when the last connection has closed. */
  drain(): Promise<void>;
  /** Closes what is still open at once. */
  destroy(): void;
}

type PackageDefinition = ConstructorParameters<typeof ReflectionService>[0];

/** The most calls that one connection may have open. */
const maxConcurrentStreams = 128;

/** After how long a connection without calls is closed, be it a client or silence. */
const idleTimeoutMs = 5 * 60_000;

/** How often a connection is asked whether its client is still there. */
const keepaliveMs = 60_000;

/**
 * Serves services written for Connect by grpc-js, with health and reflection beside them.
 *
 * @throws {Error} in plain words, if it cannot listen
 */
export async function startGrpcServer(options: GrpcServerOptions): Promise<GrpcServer> {
  const { services, gate, requestTimeoutMs, maxConnectionAgeMs, log } = options;
  const gated = new Map(
    services
      .flatMap(({ methods }) => Object.values(methods))
      .map(({ method }) => [createMethodUrl("", method), method]),
  );
  const server = new Server({
    "grpc.enable_channelz": 0,
    "grpc.max_concurrent_streams": maxConcurrentStreams,
    "grpc.max_connection_idle_ms": idleTimeoutMs,
    "grpc.keepalive_time_ms": keepaliveMs,
    "grpc.max_receive_message_length": options.maxMessageBytes,
    "grpc.max_send_message_length": -1,
    ...(maxConnectionAgeMs !== undefined && {
      "grpc.max_connection_age_ms": maxConnectionAgeMs,
      "grpc.max_connection_age_grace_ms": requestTimeoutMs,
    }),
    interceptors: [createGateInterceptor({ gate, gated, requestTimeoutMs, log })],
  });

  for (const service of services) server.addService(...toGrpcService(service));
  const health = new HealthImplementation();
  health.addToServer(server);
  const files = [
    ...services.map(({ service }) => service.file),
    ...options.reflectedFiles,
    file_grpc_health_v1_health,
  ];
  new ReflectionService(toPackage(files)).addToServer(server);

  const setServing = (isServing: boolean) => {
    for (const name of ["", ...services.map(({ service }) => service.typeName)]) {
      health.setStatus(name, isServing ? "SERVING" : "NOT_SERVING");
    }
  };
  setServing(false);

  const listener = createListener(server, options);
  return {
    port: await listen(listener, options.host, options.port),
    setServing,
    async drain() {
      const closed = new Promise((resolve) => listener.close(resolve));
      // Its own callback does not wait for connections that were injected.
      server.tryShutdown(() => {});
      await closed;
    },
    destroy() {
      listener.close();
      server.forceShutdown();
    },
  };
}

/** Makes a listener of the project's own, since that of grpc-js keeps its connections to itself. */
function createListener(server: Server, { tls, requestTimeoutMs }: GrpcServerOptions): Listener {
  const { injectConnection } = server.createConnectionInjector(ServerCredentials.createInsecure());
  if (tls === undefined) return createServer(injectConnection);
  const listener = createTlsServer(
    { ...tls.options(), ALPNProtocols: ["h2"], handshakeTimeout: requestTimeoutMs },
    (socket) => {
      closeWhenGone(socket);
      injectConnection(socket);
    },
  );
  tls.onReload((context) => listener.setSecureContext(context));
  return listener;
}

/** The files and all that they import, in the form that the reflection package reads. */
function toPackage(files: DescFile[]): PackageDefinition {
  const all = new Set<DescFile>();
  const add = (file: DescFile) => {
    if (all.has(file)) return;
    all.add(file);
    file.dependencies.forEach(add);
  };
  files.forEach(add);
  const fileDescriptorProtos = Array.from(all, (file) =>
    Buffer.from(toBinary(FileDescriptorProtoSchema, file.proto)),
  );
  return { any: { fileDescriptorProtos } } as unknown as PackageDefinition;
}
