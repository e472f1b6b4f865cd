import { create, type DescMethod, type Message } from "@bufbuild/protobuf";
import type { ConnectError } from "@connectrpc/connect";
import type { Call, TransportName, UnarySpec } from "../calls/call.ts";
import type { Gate } from "../calls/gate.ts";
import type { Exchange } from "../http/exchange.ts";

/** The largest request of a call that anybody may make, in bytes; a name fits. */
export const maxPublicBytes = 4 * 1024;

/**
 * How binary messages are read. Of 64 KiB of fields that it does not know, a decoder would keep
 * 6 MB.
 */
export const binaryOptions = { readUnknownFields: false };

/** How one protocol writes a unary call on the wire. */
export interface Codec {
  readonly transport: TransportName;
  /** The pattern of the paths of its calls, if they are plain HTTP. */
  readonly route?: string;
  /** How many bytes the body has besides its message. */
  readonly overhead: number;
  /** The client's timeout, in milliseconds. */
  timeoutMs(exchange: Exchange): number | undefined;
  /** @throws {ConnectError} the body is not one message */
  decode(method: DescMethod, body: Uint8Array, call: Call): Message;
  reply(exchange: Exchange, output: Message, call: Call): void | Promise<void>;
  /** @param call absent if it was not admitted */
  fail(exchange: Exchange, error: ConnectError, call: Call | undefined): void;
}

/** What a {@link createUnary unary path} needs. */
export interface ProtocolOptions {
  gate: Gate;
  /** The largest message to take, unpacked, in bytes. */
  maxMessageBytes: number;
}

/**
 * Creates the fast path of unary calls in the common form, on every protocol, from request to reply.
 */
export function createUnary({ gate, maxMessageBytes }: ProtocolOptions) {
  return async (codec: Codec, spec: UnarySpec, exchange: Exchange, isPublic = false) => {
    const { method } = spec;
    const { transport, route, overhead } = codec;
    let call: Call | undefined;
    try {
      const head = { method, transport, route, exchange, timeoutMs: codec.timeoutMs(exchange) };
      const admitted = isPublic ? gate.admitPublic(head) : gate.admit(head);
      // What is there is not awaited: each await makes objects that the collector has to copy.
      call = admitted instanceof Promise ? await admitted : admitted;
      const body = await exchange.readBody(isPublic ? maxPublicBytes : maxMessageBytes, overhead);
      const output = await call.invoke(spec, codec.decode(method, body, call));
      // An implementation may reply with a plain object instead of a message.
      const sending = codec.reply(exchange, create(method.output, output), call);
      if (sending !== undefined) await sending;
    } catch (reason) {
      // A call that is refused was never one, and the gate has noted why.
      codec.fail(exchange, call?.fail(reason) ?? (reason as ConnectError), call);
    }
  };
}
