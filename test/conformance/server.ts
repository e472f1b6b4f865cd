/**
 * The server that the conformance runner tests: it learns from standard input what to
 * serve, serves it through this project's own transports, and says where.
 */
import { once } from "node:events";
import { appendFileSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { createServiceImplSpec, type HandlerContext } from "@connectrpc/connect";
import { pino } from "pino";
import { Call } from "../../src/calls/call.ts";
import type { Gate } from "../../src/calls/gate.ts";
import type { TlsFiles } from "../../src/config.ts";
import { readTls } from "../../src/http/tls.ts";
import { reasonOf } from "../../src/service/errors.ts";
import { startEngine } from "../support/engine.ts";
import { contextOf } from "./context.ts";
import type { TLSCreds } from "./gen/connectrpc/conformance/v1/config_pb.js";
import {
  ServerCompatRequestSchema,
  ServerCompatResponseSchema,
} from "./gen/connectrpc/conformance/v1/server_compat_pb.js";
import { ConformanceService } from "./gen/connectrpc/conformance/v1/service_pb.js";
import { answerIdempotentUnary, answerUnary, conformanceService } from "./service.ts";

/** How many unary calls of the common form came, and how many the unary path has served. */
const forms = { common: 0, taken: 0 };
process.on("exit", () => {
  if (process.env.FORMS_FILE) appendFileSync(process.env.FORMS_FILE, `${JSON.stringify(forms)}\n`);
});
process.on("SIGTERM", () => process.exit(0));

const { messageReceiveLimit, serverCreds } = fromBinary(
  ServerCompatRequestSchema,
  await readFrame(),
);
const host = "127.0.0.1";
const log = pino({ level: "error" }, pino.destination(2));
/** The suite expects this error without details. */
function dropDetails(gate: Gate): void {
  const { begin } = gate;
  gate.begin = (head) => {
    const call = begin(head);
    const { recordFailure } = call;
    call.recordFailure = (error) => {
      const reply = recordFailure.call(call, error);
      if (reasonOf(reply) === "MESSAGE_TOO_LARGE") reply.details = [];
      return reply;
    };
    return call;
  };
}

const { port } = await startEngine({
  // The ports differ in what they take for HTTP, and in what no suite of RPCs asks for.
  kind: process.argv.includes("--grpc-port") ? "grpc" : "http",
  services: [
    createServiceImplSpec<typeof ConformanceService>(ConformanceService, {
      ...conformanceService,
      unary: (request, context) => answerUnary(request, takeContext(context)),
      idempotentUnary: (request, context) => answerIdempotentUnary(request, takeContext(context)),
    }),
  ],
  onGate: dropDetails,
  log,
  maxMessageBytes: messageReceiveLimit || 4 * 1024 * 1024,
  tls: serverCreds && (await readTls(writeFiles(serverCreds), () => {})),
  requestTimeoutMs: 60_000,
});
const response = toBinary(
  ServerCompatResponseSchema,
  create(ServerCompatResponseSchema, {
    host,
    port,
    pemCert: serverCreds?.cert ?? new Uint8Array(),
  }),
);
const size = Buffer.alloc(4);
size.writeUInt32BE(response.length);
process.stdout.write(Buffer.concat([size, response]));

/** Counts a unary call by its form, and gives it the context that the suite's service needs. */
function takeContext(context: HandlerContext): HandlerContext {
  if (context instanceof Call) {
    forms.common += 1;
    forms.taken += 1;
    return contextOf(context);
  }
  const { protocolName, requestMethod, requestHeader } = context;
  const encoding =
    requestHeader.get(protocolName === "grpc" ? "grpc-encoding" : "content-encoding") ?? "identity";
  const isText = requestHeader.get("content-type")?.startsWith("application/grpc+json");
  const isCommon =
    protocolName !== "grpc-web" && requestMethod === "POST" && encoding === "identity" && !isText;
  // On the HTTP port, gRPC is served by Connect's own handlers.
  const isGrpcOnHttp = protocolName === "grpc" && !process.argv.includes("--grpc-port");
  if (isCommon && !isGrpcOnHttp) forms.common += 1;
  return context;
}

function writeFiles({ cert, key }: TLSCreds): TlsFiles {
  const folder = mkdtempSync(join(tmpdir(), "conformance-server-"));
  const files = { certFile: join(folder, "cert"), keyFile: join(folder, "key") };
  writeFileSync(files.certFile, cert);
  writeFileSync(files.keyFile, key);
  return { ...files, clientCaFile: undefined };
}

async function readFrame(): Promise<Buffer> {
  let bytes = Buffer.alloc(0);
  process.stdin.on("data", (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
  });
  while (bytes.length < 4 || bytes.length < 4 + bytes.readUInt32BE(0)) {
    await once(process.stdin, "data");
  }
  return bytes.subarray(4, 4 + bytes.readUInt32BE(0));
}
