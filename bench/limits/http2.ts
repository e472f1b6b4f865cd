/** The limit of gRPC here: bare node:http2 that answers every call with the same record. */
import { createServer, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo } from "node:net";
import { toBinary } from "@bufbuild/protobuf";
import { InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { constant } from "./constant.ts";

const message = toBinary(InvestorSchema, constant);
const body = Buffer.alloc(5 + message.length);
body.writeUInt32BE(message.length, 1);
body.set(message, 5);

const server = createServer();
server.on("stream", (stream: ServerHttp2Stream) => {
  stream.resume();
  stream.on("end", () => {
    stream.respond(
      { ":status": 200, "content-type": "application/grpc+proto" },
      { waitForTrailers: true },
    );
    stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
    stream.end(body);
  });
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
