/**
 * The limits of the protocols here: a bare server that answers every call with the same record.
 * Started with its kind; prints the port that it serves on.
 */
import { createServer as createHttpServer } from "node:http";
import { createServer as createHttp2Server, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo } from "node:net";
import { toBinary, toJsonString } from "@bufbuild/protobuf";
import { InvestorSchema } from "../gen/investor/v1/investor_pb.js";
import { constant } from "./content.ts";

const message = Buffer.from(toBinary(InvestorSchema, constant));
const server = process.argv[2] === "node:http2" ? createHttp2() : createHttp();
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));

function createHttp() {
  const body = toJsonString(InvestorSchema, constant, { alwaysEmitImplicit: true });
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
  return createHttpServer((req, res) => {
    req.resume();
    req.on("end", () => {
      res.writeHead(200, headers);
      res.end(body);
    });
  });
}

function createHttp2() {
  const body = Buffer.alloc(5 + message.length);
  body.writeUInt32BE(message.length, 1);
  body.set(message, 5);
  const headers = { ":status": 200, "content-type": "application/grpc+proto" };
  return createHttp2Server().on("stream", (stream: ServerHttp2Stream) => {
    stream.resume();
    stream.on("end", () => {
      stream.respond(headers, { waitForTrailers: true });
      stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
      stream.end(body);
    });
  });
}
