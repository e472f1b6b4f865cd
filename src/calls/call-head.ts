import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import type { Connection } from "../http/connection.ts";
import type { HttpResponse } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";

/** Names of the protocols of calls in metrics and logs. */
export type TransportName = "grpc" | "connect" | "grpc-web" | "rest";

/** What the headers of a call tell. */
export interface CallHead {
  readonly method: DescMethod;
  readonly transport: TransportName;
  /** Anybody may make the call, and it does not count as in flight. */
  readonly isPublic: boolean;
  readonly headers: IncomingHttpHeaders;
  readonly connection: Connection;
  /** Emits `close` once the reply has been sent or abandoned. */
  readonly response: HttpResponse | ServerHttp2Stream;
  /** The client's timeout, in milliseconds. */
  readonly timeoutMs?: number | undefined;
  /** The call as plain HTTP, if that is its protocol. */
  readonly http?: HttpCall | undefined;
}

export interface HttpCall {
  readonly request: HttpRequest;
  /** The path pattern. */
  readonly route: string;
  /** Whether the whole list is requested, each part of which has a deadline of its own. */
  readonly isWholeList: boolean;
}

/** The full name of a method: service and method. */
export function methodNameOf({ parent, name }: DescMethod): string {
  return `${parent.typeName}/${name}`;
}

/** The trace id that a caller propagates (https://www.w3.org/TR/trace-context). */
export function traceIdOf({ traceparent }: IncomingHttpHeaders): string | undefined {
  return /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-/.exec(String(traceparent))?.[1];
}
