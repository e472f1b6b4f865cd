import { create, toBinary } from "@bufbuild/protobuf";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { content, jsonContent, mark } from "./content.ts";
import type { Work } from "./load/generator.ts";

/** A record that is there. */
export interface Known {
  id: string;
  firstName: string;
}

/** A way to call a server. */
export type Api = "grpc" | "connect" | "rest" | "pocketBase";

const { createInvestor, getInvestor, listInvestors } = InvestorService.method;
const collections = { rest: "/v1/investors", pocketBase: "/api/collections/investors/records" };
let runs = 0;

/** Creates of records whose names nobody has. */
export function creates(api: Api): Work {
  runs += 1;
  const { input } = createInvestor;
  const common = { kind: "create", mark, prefix: `${runs.toString(36)}.` } as const;
  if (api === "grpc") {
    return { ...common, ...grpc(createInvestor), message: toBinary(input, create(input, content)) };
  }
  const message =
    api === "connect"
      ? post(pathTo(createInvestor), { ...jsonContent, type: "INVESTOR_TYPE_INDIVIDUAL" })
      : post(collections[api], jsonContent);
  return { ...common, protocol: "http", message };
}

/** Gets of records, each of which must come with its name. */
export function gets(api: Api, records: Known[]): Work {
  const { input } = getInvestor;
  const toMessage = (id: string) => {
    if (api === "grpc") return toBinary(input, create(input, { id }));
    return api === "connect"
      ? post(pathTo(getInvestor), { id })
      : Buffer.from(`GET ${collections[api]}/${id} HTTP/1.1\r\nhost: localhost\r\n\r\n`);
  };
  return {
    ...(api === "grpc" ? grpc(getInvestor) : { protocol: "http" }),
    kind: "repeat",
    messages: records.map(({ id, firstName }) => ({ message: toMessage(id), expected: firstName })),
  };
}

/** The page after a token, which must begin with a record. */
export function page(pageToken: string, { firstName }: Pick<Known, "firstName">): Work {
  const { input } = listInvestors;
  const message = toBinary(input, create(input, { pageSize: 100, pageToken }));
  return {
    ...grpc(listInvestors),
    kind: "repeat",
    messages: [{ message, expected: firstName }],
  };
}

/** The path of a method. */
export function pathTo({ name }: { name: string }): string {
  return `/${InvestorService.typeName}/${name}`;
}

function grpc(method: { name: string }) {
  return { protocol: "grpc", path: pathTo(method) } as const;
}

function post(path: string, value: object): Buffer {
  const body = JSON.stringify(value);
  const length = `content-length: ${Buffer.byteLength(body)}`;
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n${length}\r\n\r\n${body}`,
  );
}
