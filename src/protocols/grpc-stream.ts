import { create } from "@bufbuild/protobuf";
import type { ConnectError, MethodImplSpec } from "@connectrpc/connect";
import type { Call } from "../calls/call.ts";
import type { Exchange } from "../http/exchange.ts";
import { envelop, grpcCodec, headersOf, prefixBytes, sendStatus, trailersOf } from "./grpc.ts";
import { maxOpenBytes, type UnaryOptions } from "./unary.ts";

/** The implementation of a method that replies to one message with a stream. */
type StreamSpec = MethodImplSpec & { kind: "server_streaming" };

const { transport, timeoutMs, decode } = grpcCodec;

/**
 * Makes the straight way of calls by gRPC of the common form that stream their reply, as watches
 * do. Through Connect's handlers, each that is open takes 44 KB more.
 */
export function createGrpcStream({ gate, maxMessageBytes }: UnaryOptions) {
  async function reply(spec: StreamSpec, call: Call, isOpen: boolean): Promise<void> {
    const { method, impl } = spec;
    const { exchange } = call.head;
    const body = await exchange.readBody(isOpen ? maxOpenBytes : maxMessageBytes, prefixBytes);
    const input = decode(method, body, call);
    call.signal.throwIfAborted();
    if (isOpen) call.limitByClient();
    const begin = () => exchange.begin(200, headersOf(exchange, call), () => trailersOf(call));
    for await (const output of call.run(() => impl(input, call))) {
      if (!exchange.isBegun) begin();
      await exchange.write(envelop(method, create(method.output, output)));
    }
    if (!exchange.isBegun) begin();
  }

  return async (spec: StreamSpec, exchange: Exchange, isOpen: boolean) => {
    let call: Call | undefined;
    try {
      const head = { method: spec.method, transport, exchange, timeoutMs: timeoutMs(exchange) };
      call = isOpen ? gate.open(head) : await gate.admit(head);
      await reply(spec, call, isOpen);
    } catch (reason) {
      const error = call?.fail(reason) ?? (reason as ConnectError);
      if (!exchange.isBegun) {
        sendStatus(exchange, error, call);
        return;
      }
    }
    exchange.end();
  };
}
