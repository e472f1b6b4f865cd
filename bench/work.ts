import { create, toBinary, toJsonString } from "@bufbuild/protobuf";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { content, mark } from "./content.ts";
import type { Work } from "./load/generator.ts";

/** A record that is there. */
export interface Known {
  id: string;
  firstName: string;
}

type Protocol = "grpc" | "connect";

const { createInvestor, getInvestor, listInvestors } = InvestorService.method;
const paths = { createInvestor, getInvestor, listInvestors };
let runs = 0;

/** The path of a method. */
export function pathTo(method: keyof typeof paths): string {
  return `/${InvestorService.typeName}/${paths[method].name}`;
}

/** Creates of records whose names nobody has. */
export function creates(protocol: Protocol): Work {
  const schema = createInvestor.input;
  const request = create(schema, content);
  const message =
    protocol === "grpc" ? toBinary(schema, request) : Buffer.from(toJsonString(schema, request));
  runs += 1;
  return { kind: "create", message, mark, prefix: `${runs.toString(36)}.` };
}

/** Gets of records, each of which must come with its name. */
export function gets(protocol: Protocol, records: Known[]): Work {
  const schema = getInvestor.input;
  return {
    kind: "repeat",
    messages: records.map(({ id, firstName }) => {
      const request = create(schema, { id });
      return {
        message:
          protocol === "grpc"
            ? toBinary(schema, request)
            : Buffer.from(toJsonString(schema, request)),
        expected: firstName,
      };
    }),
  };
}

/** The page behind a token, which must begin with a record. */
export function page(pageToken: string, first: Known): Work {
  const schema = listInvestors.input;
  const message = toBinary(schema, create(schema, { pageSize: 100, pageToken }));
  return { kind: "repeat", messages: [{ message, expected: first.firstName }] };
}
