import { createRequire } from "node:module";
import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { anyUnpack, durationMs } from "@bufbuild/protobuf/wkt";
import type {
  ChannelCredentials,
  ClientOptions,
  ClientUnaryCall,
  Metadata,
  ServiceError,
  status,
} from "@grpc/grpc-js";
import {
  type BadRequest_FieldViolation,
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "../gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../gen/google/rpc/status_pb.js";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";

/** How to make one call. */
export interface CallOptions {
  /** Deadline in ms from now; that of the client if absent, `Infinity` for none. */
  timeoutMs?: number;
  /** Cancels the call, which then rejects with CANCELLED. */
  signal?: AbortSignal;
  /** Headers to send. */
  metadata?: Metadata;
}

/** Settings of an {@link InvestorClient}. */
export interface InvestorClientOptions {
  /**
   * Deadline of a call that sets none, in ms; 15,000 if absent, so that the service, which
   * gives up after 10,000 by default, can reply with the reason.
   */
  timeoutMs?: number;
  /** Options of the gRPC channel. */
  channelOptions?: ClientOptions;
}

type Methods = typeof InvestorService.method;

/**
 * The methods of the service, as promises.
 *
 * @throws {InvestorError} a call fails
 * @throws {Error} nothing was sent: the request or an option is wrong, or the client is closed
 */
export type InvestorClient = {
  readonly [Name in keyof Methods]: (
    request: MessageInitShape<Methods[Name]["input"]>,
    options?: CallOptions,
  ) => Promise<MessageShape<Methods[Name]["output"]>>;
} & {
  /** Closes the connection once the calls in flight have finished; further ones are refused. */
  close(): void;
};

/**
 * A failed call. The reasons are in the comments of investor.proto. What fails on the way to
 * the service, such as a wrong address or a deadline of the caller, has a code and no reason.
 */
export class InvestorError extends Error {
  override readonly name = "InvestorError";
  /** The status of gRPC. */
  readonly code: status;
  /** Why it failed, for programs, such as `REQUEST_ID_REUSED`. */
  readonly reason: string | undefined;
  /** Data of the reason, such as the `id` to look a record up by. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The fields that break a rule. */
  readonly violations: readonly BadRequest_FieldViolation[];
  /**
   * The delay that the service asks for before a repeat, in ms; undefined if it named none, which
   * does not mean that a repeat is useless: after DEADLINE_EXCEEDED, or UNAVAILABLE of grpc-js
   * itself, a create with a request id can be repeated too.
   */
  readonly retryDelayMs: number | undefined;

  /** @param cause the error of grpc-js */
  constructor(cause: ServiceError) {
    super(cause.details, { cause });
    const { info, badRequest, retry } = readDetails(cause);
    this.code = cause.code;
    this.reason = info?.reason;
    this.metadata = info?.metadata ?? {};
    this.violations = badRequest?.fieldViolations ?? [];
    this.retryDelayMs = retry?.retryDelay && durationMs(retry.retryDelay);
  }
}

/**
 * Makes a client, which connects with its first call and again whenever it has to.
 *
 * @param address host and port, such as `localhost:50051`
 * @param credentials those of grpc-js
 * @throws {Error} `@grpc/grpc-js` is not installed, or the address is no address at all
 */
export function createInvestorClient(
  address: string,
  credentials: ChannelCredentials,
  { timeoutMs = 15_000, channelOptions = {} }: InvestorClientOptions = {},
): InvestorClient {
  const grpc = loadGrpc();
  const client = new grpc.Client(address, credentials, channelOptions);
  let inFlight = 0;
  let isClosing = false;

  // grpc-js would fail the calls that are not on a connection yet.
  const closeIfIdle = () => {
    if (isClosing && inFlight === 0) client.close();
  };

  const toCall =
    <I extends DescMessage, O extends DescMessage>(method: DescMethodUnary<I, O>) =>
    async (request: MessageInitShape<I>, options: CallOptions = {}): Promise<MessageShape<O>> => {
      const { parent, name, input, output } = method;
      const bytes = encode(input, create(input, request));
      const { signal, metadata = new grpc.Metadata() } = options;
      const limitMs = options.timeoutMs ?? timeoutMs;
      if (Number.isNaN(limitMs)) throw new RangeError("timeoutMs must be a number");
      // grpc-js ends the process on a deadline that gRPC cannot write.
      const deadline = limitMs < 1e14 ? Date.now() + limitMs : Number.POSITIVE_INFINITY;
      if (isClosing) throw new Error("the client is closed");
      let call: ClientUnaryCall | undefined;
      const cancel = () => call?.cancel();
      signal?.addEventListener("abort", cancel);
      inFlight += 1;
      try {
        return await new Promise((resolve, reject) => {
          call = client.makeUnaryRequest(
            `/${parent.typeName}/${name}`,
            (message: Buffer) => message,
            (reply): MessageShape<O> => fromBinary(output, reply),
            bytes,
            metadata,
            { deadline },
            (error, reply) => {
              if (error) reject(new InvestorError(error));
              else if (reply) resolve(reply);
            },
          );
          if (signal?.aborted) cancel();
        });
      } finally {
        signal?.removeEventListener("abort", cancel);
        inFlight -= 1;
        closeIfIdle();
      }
    };

  const { createInvestor, getInvestor, listInvestors } = InvestorService.method;
  return {
    createInvestor: toCall(createInvestor),
    getInvestor: toCall(getInvestor),
    listInvestors: toCall(listInvestors),
    close() {
      isClosing = true;
      closeIfIdle();
    },
  };
}

/**
 * A request in binary. Its fields are scalars.
 *
 * @throws {Error} text that UTF-8 cannot encode, which `toBinary` would store as U+FFFD
 */
function encode<D extends DescMessage>(desc: D, message: MessageShape<D>): Buffer {
  const values: Record<string, unknown> = { ...message };
  for (const field of desc.fields) {
    const value = values[field.localName];
    if (typeof value === "string" && !value.isWellFormed()) {
      throw new Error(`cannot encode ${field} to binary: unpaired surrogate`);
    }
  }
  return Buffer.from(toBinary(desc, message));
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

/** The details of an error; none if it has none that can be read. */
function readDetails({ metadata }: ServiceError) {
  const [bytes = ""] = metadata.get("grpc-status-details-bin");
  try {
    const { details } = fromBinary(StatusSchema, Buffer.from(bytes));
    const find = <D extends DescMessage>(desc: D) =>
      details.map((any) => anyUnpack(any, desc)).find((detail) => detail !== undefined);
    return {
      info: find(ErrorInfoSchema),
      badRequest: find(BadRequestSchema),
      retry: find(RetryInfoSchema),
    };
  } catch {
    return {};
  }
}
