import { createRequire } from "node:module";
import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import type {
  ChannelCredentials,
  ClientUnaryCall,
  ClientOptions as GrpcOptions,
  ServiceError,
} from "@grpc/grpc-js";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { createClient, type InvestorClient, type InvestorClientOptions } from "./client.ts";
import { type Detail, InvestorError } from "./error.ts";

export type { CallOptions, InvestorClient, InvestorClientOptions, NewInvestor } from "./client.ts";
export { type CodeName, InvestorError, type Violation } from "./error.ts";

/** Settings of a client over grpc-js. */
export interface GrpcClientOptions extends InvestorClientOptions {
  /** Options of the gRPC channel. */
  channelOptions?: GrpcOptions | undefined;
}

const channelDefaults = {
  // The client repeats calls itself.
  "grpc.enable_retries": 0,
  // grpc-js would wait up to two minutes for a service that is back after a second.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // A connection whose other end is gone without a word is found out within a deadline.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
};

/**
 * Makes a client over grpc-js, which connects with its first call and again whenever it has to.
 *
 * @param address host and port, such as `localhost:50051`
 * @param credentials those of grpc-js
 * @throws {Error} `@grpc/grpc-js` is not installed, or the address is no address at all
 */
export function createInvestorClient(
  address: string,
  credentials: ChannelCredentials,
  { channelOptions, ...options }: GrpcClientOptions = {},
): InvestorClient {
  const grpc = loadGrpc();
  const client = new grpc.Client(address, credentials, { ...channelDefaults, ...channelOptions });
  return createClient(
    {
      async call({ parent, name, input, output }, { bytes, headers, timeoutMs, signal }) {
        const metadata = new grpc.Metadata();
        for (const [header, value] of Object.entries(headers)) metadata.set(header, value);
        // grpc-js ends the process on a deadline that gRPC cannot write.
        const deadline = timeoutMs < 1e14 ? Date.now() + timeoutMs : Number.POSITIVE_INFINITY;
        let call: ClientUnaryCall | undefined;
        const cancel = () => call?.cancel();
        signal?.addEventListener("abort", cancel);
        try {
          return await new Promise((resolve, reject) => {
            call = client.makeUnaryRequest(
              `/${parent.typeName}/${name}`,
              (message: Uint8Array) => Buffer.from(message),
              (reply): MessageShape<typeof output> => fromBinary(output, reply),
              bytes,
              metadata,
              { deadline },
              (error, reply) => {
                if (error) reject(toError(error, input));
                else if (reply) resolve(reply);
              },
            );
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

/** Loads the peer only here, so that the error can say how to install it. */
function loadGrpc(): typeof import("@grpc/grpc-js") {
  try {
    return createRequire(import.meta.url)("@grpc/grpc-js");
  } catch (cause) {
    const message = "createInvestorClient needs @grpc/grpc-js: npm install @grpc/grpc-js";
    throw new Error(message, { cause });
  }
}

function toError(cause: ServiceError, input: DescMessage): InvestorError {
  const { code, details: message, metadata } = cause;
  const [bytes = ""] = metadata.get("grpc-status-details-bin");
  let details: Detail[] = [];
  try {
    const status = fromBinary(StatusSchema, Buffer.from(bytes));
    details = status.details.map(({ typeUrl, value }) => ({
      type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
      value,
    }));
  } catch {
    // The code and the message say what there is.
  }
  return new InvestorError({ code, message, details, cause }, input);
}
