import { create, toBinary } from "@bufbuild/protobuf";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { content, mark } from "./content.ts";

/** What callers send. */
export interface Work {
  /** The path of a gRPC method; if absent, messages are whole requests of HTTP/1.1. */
  grpcPath?: string;
  /** Whether each call stores a record. */
  stores: boolean;
  /** The message of the next call, and what its reply has to hold. */
  next(): { message: Buffer; expected: string };
}

/** A record that is there. */
export interface Known {
  id: string;
  firstName: string;
}

/** A way to call a server. */
export type Api = "grpc" | "connect";

const { createInvestor, getInvestor } = InvestorService.method;

/** Creates of records by gRPC, each with a name of its own. */
export function creates(): Work {
  const template = Buffer.from(
    toBinary(createInvestor.input, create(createInvestor.input, content)),
  );
  const at = template.indexOf(mark);
  let count = 0;
  return {
    grpcPath: toPath(createInvestor),
    stores: true,
    next() {
      count += 1;
      const expected = `created.${count}`.padEnd(mark.length, "_");
      const message = Buffer.from(template);
      message.write(expected, at, "latin1");
      return { message, expected };
    },
  };
}

/** Gets of records in turn, each of which must come with its name. */
export function gets(api: Api, records: Known[]): Work {
  const toMessage = (id: string) => {
    if (api === "grpc") {
      return Buffer.from(toBinary(getInvestor.input, create(getInvestor.input, { id })));
    }
    return toPost(toPath(getInvestor), { id });
  };
  const calls = records.map((record) => {
    return { message: toMessage(record.id), expected: record.firstName };
  });
  let count = 0;
  return {
    ...(api === "grpc" && { grpcPath: toPath(getInvestor) }),
    stores: false,
    next: () => calls[count++ % calls.length] as (typeof calls)[number],
  };
}

/** The path of a method. */
export function toPath({ name }: { name: string }): string {
  return `/${InvestorService.typeName}/${name}`;
}

function toPost(path: string, value: object): Buffer {
  const body = JSON.stringify(value);
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}
