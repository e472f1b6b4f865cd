/**
 * The server that the conformance runner tests: it learns from standard input what to
 * serve, serves it through this project's own transports, and says where.
 */
import { once } from "node:events";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { createServiceImplSpec } from "@connectrpc/connect";
import { pino } from "pino";
import { createDeadlineInterceptor } from "../../src/calls/deadline.ts";
import { createFailureInterceptor } from "../../src/calls/failure.ts";
import { createConnectHandler } from "../../src/transports/connect.ts";
import { startGrpcServer } from "../../src/transports/grpc.ts";
import { startHttpServer } from "../../src/transports/http.ts";
import { openGate } from "../support/gate.ts";
import { Protocol } from "./gen/connectrpc/conformance/v1/config_pb.js";
import {
  ServerCompatRequestSchema,
  ServerCompatResponseSchema,
} from "./gen/connectrpc/conformance/v1/server_compat_pb.js";
import { ConformanceService } from "./gen/connectrpc/conformance/v1/service_pb.js";
import { conformanceService } from "./service.ts";

process.on("SIGTERM", () => process.exit(0));

const { protocol, messageReceiveLimit } = fromBinary(ServerCompatRequestSchema, await readFrame());
const host = "127.0.0.1";
const common = {
  services: [
    createServiceImplSpec<typeof ConformanceService>(ConformanceService, conformanceService),
  ],
  interceptors: [
    createFailureInterceptor(pino({ level: "error" }, pino.destination(2))),
    createDeadlineInterceptor(60_000),
  ],
  gate: openGate(1_024),
  maxMessageBytes: messageReceiveLimit || 4 * 1024 * 1024,
  host,
  port: 0,
  requestTimeoutMs: 60_000,
};
const { port } =
  protocol === Protocol.GRPC
    ? await startGrpcServer({ ...common, reflectedFiles: [] })
    : await startHttpServer({
        ...common,
        corsOrigins: [],
        refusesForeignPages: false,
        handlers: [createConnectHandler(common)],
      });
const response = toBinary(
  ServerCompatResponseSchema,
  create(ServerCompatResponseSchema, { host, port }),
);
const size = Buffer.alloc(4);
size.writeUInt32BE(response.length);
process.stdout.write(Buffer.concat([size, response]));

async function readFrame(): Promise<Buffer> {
  let bytes = Buffer.alloc(0);
  process.stdin.on("data", (chunk) => {
    bytes = Buffer.concat([bytes, chunk]);
  });
  while (bytes.length < 4 || bytes.length < 4 + bytes.readUInt32BE(0)) {
    await once(process.stdin, "data");
  }
  return bytes.subarray(4, 4 + bytes.readUInt32BE(0));
}
