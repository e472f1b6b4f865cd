import { create } from "@bufbuild/protobuf";
import type { ConnectError, MethodImplSpec } from "@connectrpc/connect";
import type { Call } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { envelop, grpcCodec, headersOf, prefixBytes, sendStatus, trailersOf } from "./grpc.ts";
import { maxPublicBytes, type ProtocolOptions } from "./unary.ts";

/** The implementation of a method that replies to one message with a stream. */
type StreamSpec = MethodImplSpec & { kind: "server_streaming" };

const { transport, timeoutMs, decode } = grpcCodec;

/**
 * Creates the fast path of gRPC calls in the common form that stream their reply, as watches do.
 * Through Connect's handlers, each open one takes 44 KB more.
 */
export function createGrpcStream({ gate, maxMessageBytes }: ProtocolOptions) {
  async function reply(spec: StreamSpec, call: Call, isPublic: boolean): Promise<void> {
    const { method, impl } = spec;
    const { exchange } = call.head;
    const body = await exchange.readBody(isPublic ? maxPublicBytes : maxMessageBytes, prefixBytes);
    const input = decode(method, body, call);
    call.throwIfAborted();
    if (isPublic) call.limitByClient();
    const begin = () => exchange.begin(200, headersOf(exchange, call), () => trailersOf(call));
    for await (const output of call.run(() => impl(input, call))) {
      if (!exchange.headersSent) begin();
      await exchange.write(envelop(method, create(method.output, output)));
    }
    if (!exchange.headersSent) begin();
  }

  return async (spec: StreamSpec, exchange: Exchange, isPublic: boolean) => {
    let call: Call | undefined;
    try {
      const head = { method: spec.method, transport, exchange, timeoutMs: timeoutMs(exchange) };
      call = isPublic ? gate.admitPublic(head) : await gate.admit(head);
      await reply(spec, call, isPublic);
    } catch (reason) {
      const error = call?.fail(reason) ?? (reason as ConnectError);
      if (!exchange.headersSent) {
        sendStatus(exchange, error, call);
        return;
      }
    }
    exchange.end();
  };
}
