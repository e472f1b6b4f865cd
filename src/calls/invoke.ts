import { create, type DescMethodUnary, type DescService, type Message } from "@bufbuild/protobuf";
import type {
  ContextValues,
  HandlerContext,
  Interceptor,
  MethodImplSpec,
  UnaryRequest,
  UnaryResponse,
} from "@connectrpc/connect";

import type { CallContext } from "./context.ts";

/** The implementation of a unary method. */
export type UnarySpec = MethodImplSpec & { kind: "unary" };

/**
 * Runs the implementation of a unary method behind interceptors, the first of which is the
 * outermost. Connect's own way asks for the headers of every request, and making them took
 * an eighth of the time of a call.
 */
export async function invokeUnary(
  { method, impl }: UnarySpec,
  context: CallContext,
  message: Message,
  interceptors: Interceptor[],
): Promise<UnaryResponse> {
  const { service, responseHeader: header, responseTrailer: trailer } = context;
  const request = new Request(method, context, message);
  const handle = async (req: UnaryRequest): Promise<UnaryResponse> => {
    const output = await impl(req.message, req === request ? context : adapt(context, req));
    // An implementation may answer with a plain object in place of a message.
    const answer = create(method.output, output);
    return { stream: false, service, method, message: answer, header, trailer };
  };
  const run = interceptors.reduceRight(
    (next, intercept) => intercept(next as never) as typeof handle,
    handle,
  );
  try {
    return await run(request);
  } finally {
    context.settle();
  }
}

/** The context of a call whose request an interceptor has replaced. */
function adapt(context: HandlerContext, req: UnaryRequest): HandlerContext {
  const { signal, header: requestHeader, contextValues: values } = req;
  return { ...context, signal, requestHeader, values };
}

class Request implements UnaryRequest {
  readonly stream = false;
  readonly service: DescService;
  readonly method: DescMethodUnary;
  readonly message: Message;
  readonly requestMethod: string;
  readonly url: string;
  readonly signal: AbortSignal;
  readonly contextValues: ContextValues;
  readonly #context: HandlerContext;

  constructor(method: DescMethodUnary, context: HandlerContext, message: Message) {
    this.service = context.service;
    this.method = method;
    this.message = message;
    this.requestMethod = context.requestMethod;
    this.url = context.url;
    this.signal = context.signal;
    this.contextValues = context.values;
    this.#context = context;
  }

  get header(): Headers {
    return this.#context.requestHeader;
  }
}
