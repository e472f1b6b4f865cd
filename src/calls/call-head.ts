import type { IncomingHttpHeaders } from "node:http";
import type { ServerHttp2Stream } from "node:http2";
import type { DescMethod } from "@bufbuild/protobuf";
import type { Connection } from "../http/connection.ts";
import type { HttpResponse } from "../http/reply.ts";
import type { HttpRequest } from "../http/request.ts";

/** The protocols of calls, as metrics and logs name them. */
export type TransportName = "grpc" | "connect" | "grpc-web" | "rest";

/** What is known of a call once its headers have arrived. */
export interface CallHead {
  readonly method: DescMethod;
  readonly transport: TransportName;
  /** Anybody may make it, and it is not counted among those in flight. */
  readonly isPublic: boolean;
  readonly headers: IncomingHttpHeaders;
  readonly connection: Connection;
  /** Emits `close` when the reply was sent, or never will be. */
  readonly response: HttpResponse | ServerHttp2Stream;
  /** The client's timeout, in milliseconds. */
  readonly timeoutMs?: number | undefined;
  /** How it looks as a request of plain HTTP, if that is its protocol. */
  readonly http?: HttpCall | undefined;
}

export interface HttpCall {
  readonly request: HttpRequest;
  /** The pattern of its path. */
  readonly route: string;
  /** Whether it is the whole list, which has neither a deadline nor a size. */
  readonly isWholeList: boolean;
}

/** The name of a method with that of its service. */
export function methodNameOf({ parent, name }: DescMethod): string {
  return `${parent.typeName}/${name}`;
}
