/**
 * The server that the conformance runner tests: it learns from standard input what to
 * serve, serves it through this project's own transports, and says where.
 */
import { once } from "node:events";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { createServiceImplSpec } from "@connectrpc/connect";
import { pino } from "pino";
import type { Gate } from "../../src/calls/gate.ts";
import { Failure } from "../../src/failures.ts";
import { readTls, type TlsSettings } from "../../src/http/tls.ts";
import { startEngine } from "../support/engine.ts";
import type { TLSCreds } from "./gen/connectrpc/conformance/v1/config_pb.js";
import {
  ServerCompatRequestSchema,
  ServerCompatResponseSchema,
} from "./gen/connectrpc/conformance/v1/server_compat_pb.js";
import { ConformanceService } from "./gen/connectrpc/conformance/v1/service_pb.js";
import { conformanceService } from "./service.ts";

process.on("SIGTERM", () => process.exit(0));

const { messageReceiveLimit, serverCreds } = fromBinary(
  ServerCompatRequestSchema,
  await readFrame(),
);
const host = "127.0.0.1";
const noop = () => {};
const log = pino({ level: "error" }, pino.destination(2));

/** The suite expects this error without details. */
function dropDetails(gate: Gate): void {
  const { begin } = gate;
  gate.begin = (head) => {
    const call = begin(head);
    const { recordFailure } = call;
    call.recordFailure = (error) => {
      const failure = recordFailure.call(call, error);
      const { message, code, reason } = failure;
      return reason === "MESSAGE_TOO_LARGE" ? new Failure(message, { code }) : failure;
    };
    return call;
  };
}

const { port } = await startEngine({
  services: [
    createServiceImplSpec<typeof ConformanceService>(ConformanceService, conformanceService),
  ],
  onGate: dropDetails,
  log,
  maxMessageBytes: messageReceiveLimit || 4 * 1024 * 1024,
  tls: serverCreds && (await readTls(writeFiles(serverCreds), noop, noop)),
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

function writeFiles({ cert, key }: TLSCreds): TlsSettings {
  const folder = mkdtempSync(join(tmpdir(), "conformance-server-"));
  const files = { tlsCert: join(folder, "cert"), tlsKey: join(folder, "key") };
  writeFileSync(files.tlsCert, cert);
  writeFileSync(files.tlsKey, key);
  return files;
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
