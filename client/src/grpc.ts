import { fromBinary, type MessageShape } from "@bufbuild/protobuf";
import {
  type ChannelCredentials,
  Client,
  type ClientUnaryCall,
  type ClientOptions as GrpcOptions,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { createClient, type InvestorClient, type InvestorClientOptions } from "./client.ts";
import { codeOf, type Detail, type Failure, parseRetryAfter } from "./error.ts";

export type { CallOptions, InvestorClient, InvestorClientOptions, NewInvestor } from "./client.ts";
export { type CodeName, InvestorError, type Violation } from "./error.ts";

/** Settings of a client over grpc-js. */
export interface GrpcClientOptions extends InvestorClientOptions {
  /** Options of the gRPC channel. */
  channelOptions?: GrpcOptions | undefined;
}

const channelDefaults = {
  // The client retries by itself.
  "grpc.enable_retries": 0,
  // By default, grpc-js could wait two minutes for a service that is back after a second.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // Detects within a deadline that the other end of a connection has vanished.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
};

/**
 * Creates a client over grpc-js, which connects on its first call and reconnects when needed.
 *
 * @param address host and port, such as `localhost:8080`
 * @param credentials those of grpc-js
 * @throws {Error} the address is malformed
 */
export function createInvestorClient(
  address: string,
  credentials: ChannelCredentials,
  { channelOptions, ...options }: GrpcClientOptions = {},
): InvestorClient {
  const client = new Client(address, credentials, { ...channelDefaults, ...channelOptions });
  return createClient(
    {
      async call({ parent, name, output }, { bytes, headers, timeoutMs, signal }) {
        const metadata = new Metadata();
        for (const [header, value] of Object.entries(headers)) metadata.set(header, value);
        // grpc-js crashes the process on a deadline that gRPC cannot encode.
        const deadline = timeoutMs < 1e14 ? Date.now() + timeoutMs : Number.POSITIVE_INFINITY;
        let call: ClientUnaryCall | undefined;
        const cancel = () => call?.cancel();
        signal?.addEventListener("abort", cancel);
        try {
          return await new Promise((resolve) => {
            let received = new Metadata();
            call = client.makeUnaryRequest(
              `/${parent.typeName}/${name}`,
              (message: Uint8Array) => Buffer.from(message),
              (reply): MessageShape<typeof output> => fromBinary(output, reply),
              bytes,
              metadata,
              { deadline },
              (error, reply) => {
                if (error) resolve({ failure: toFailure(error, received) });
                else if (reply) resolve({ reply });
              },
            );
            call.on("metadata", (headers) => {
              received = headers;
            });
          });
        } finally {
          signal?.removeEventListener("abort", cancel);
        }
      },
      close: () => client.close(),
    },
    options,
  );
}

/** @param headers the headers received before the status */
function toFailure(cause: ServiceError, headers: Metadata): Failure {
  const { code, details: message, metadata } = cause;
  headers.merge(metadata);
  const received = headers.getMap();
  if (Object.keys(received).length === 0) return { ...toUnanswered(cause), cause };
  const retryAfterMs = parseRetryAfter(received["retry-after"]);
  let details: Detail[] = [];
  try {
    const bytes = Buffer.from(received["grpc-status-details-bin"] ?? "");
    details = fromBinary(StatusSchema, bytes).details.map(({ typeUrl, value }) => ({
      type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
      value,
    }));
  } catch {
    // The code and the message have to do.
  }
  return { code, message, details, cause, retryAfterMs };
}

/** The failure of a call without any reply. grpc-js gives the cause only as text. */
function toUnanswered({ code, details: message }: ServiceError): Failure {
  if (!/certificate|SSL routines|options\.servername|error: Protocol error/.test(message)) {
    return { code, message, isUnanswered: true };
  }
  const hint = message.includes("options.servername")
    ? 'TLS to an IP address needs a name of the certificate in channelOptions: { "grpc.ssl_target_name_override": … }; '
    : "";
  return { code: codeOf("FAILED_PRECONDITION"), message: hint + message };
}
