/**
 * What one would write first: grpc-js and one statement a call, on MongoDB by the driver or on
 * SQLite. Started with the URL of a database; prints the port that it serves on.
 */
import { create, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials, type ServiceDefinition, status } from "@grpc/grpc-js";
import { v7 } from "uuid";
import { InvestorSchema, InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { openRecords } from "./records.ts";

const records = await openRecords(String(process.argv[2]));
const { createInvestor, getInvestor } = InvestorService.method;
type Call<T> = { request: T };
type Done = (error: object | null, value?: MessageShape<typeof InvestorSchema>) => void;

const server = new Server();
server.addService(toDefinition(), {
  async createInvestor({ request }: Call<MessageShape<typeof createInvestor.input>>, done: Done) {
    const { $typeName: _, $unknown: __, requestId: ___, ...content } = request;
    const id = v7();
    await records.insert(id, content);
    done(null, create(InvestorSchema, { id, ...(content as object) }));
  },
  async getInvestor({ request }: Call<MessageShape<typeof getInvestor.input>>, done: Done) {
    const content = await records.find(request.id);
    if (content === undefined) done({ code: status.NOT_FOUND });
    else done(null, create(InvestorSchema, { id: request.id, ...content }));
  },
});
server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (_, port) => console.log(port));

function toDefinition(): ServiceDefinition {
  return Object.fromEntries(
    [createInvestor, getInvestor].map(({ localName, name, parent, input, output }) => [
      localName,
      {
        path: `/${parent.typeName}/${name}`,
        requestStream: false,
        responseStream: false,
        requestSerialize: (message) => Buffer.from(toBinary(input, message)),
        requestDeserialize: (bytes) => fromBinary(input, bytes),
        responseSerialize: (message) => Buffer.from(toBinary(output, message)),
        responseDeserialize: (bytes) => fromBinary(output, bytes),
      } satisfies ServiceDefinition[string],
    ]),
  );
}
