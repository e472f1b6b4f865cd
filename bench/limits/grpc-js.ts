/** The limit of grpc-js: a server that answers every call with the same record. */
import { toBinary } from "@bufbuild/protobuf";
import { createMethodUrl } from "@connectrpc/connect/protocol";
import { Server, ServerCredentials, type sendUnaryData } from "@grpc/grpc-js";
import { InvestorSchema, InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { constant } from "./constant.ts";

const message = Buffer.from(toBinary(InvestorSchema, constant));
const asItIs = (bytes: Buffer) => bytes;
const getInvestor = {
  path: createMethodUrl("", InvestorService.method.getInvestor),
  requestStream: false,
  responseStream: false,
  requestSerialize: asItIs,
  requestDeserialize: asItIs,
  responseSerialize: asItIs,
  responseDeserialize: asItIs,
} as const;

const server = new Server();
server.addService(
  { getInvestor },
  { getInvestor: (_: unknown, done: sendUnaryData<Buffer>) => done(null, message) },
);
server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (_, port) => console.log(port));
