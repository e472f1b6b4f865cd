import type { IncomingHttpHeaders } from "node:http";
import type { DescMethod } from "@bufbuild/protobuf";
import type { Connection } from "../http/connection.ts";

/** The protocols of calls, as metrics and logs name them. */
export type TransportName = "grpc" | "connect" | "grpc-web" | "rest";

/** What is known of a call when its headers are there. */
export interface CallHead {
  readonly method: DescMethod;
  readonly transport: TransportName;
  /** Anybody may make it, and it is not counted among those in flight. */
  readonly isPublic: boolean;
  readonly headers: IncomingHttpHeaders;
  readonly connection: Connection;
  /** Emits `close` when the reply was sent, or never will be. */
  readonly response: ResponseEvents;
  /** The client's timeout, in milliseconds. */
  readonly timeoutMs?: number | undefined;
  /** How it looks as a request of plain HTTP, if that is its protocol. */
  readonly http?: HttpCall | undefined;
}

interface ResponseEvents {
  readonly headersSent: boolean;
  readonly writableFinished: boolean;
  readonly writableLength: number;
  readonly statusCode?: number;
  /** The stream of HTTP/2, unless it is one itself. */
  readonly stream?: {
    readonly aborted: boolean;
    once(event: "finish", listener: () => void): unknown;
  };
  readonly aborted?: boolean;
  once(event: "close" | "finish", listener: () => void): unknown;
  /** Cuts it off. */
  destroy(): unknown;
}

export interface HttpCall {
  readonly method: string;
  readonly path: string;
  /** The pattern of its path. */
  readonly route: string;
  readonly version: string;
  /** The whole list, which has no deadline, nor a size. */
  readonly isWholeList: boolean;
}

/** The name of a method with that of its service. */
export function methodNameOf({ parent, name }: DescMethod): string {
  return `${parent.typeName}/${name}`;
}

/** The trace that a caller carries on (https://www.w3.org/TR/trace-context). */
export function parentTraceOf({ headers }: CallHead): string | undefined {
  return /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-/.exec(String(headers.traceparent))?.[1];
}
