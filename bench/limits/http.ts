/** The limit of Connect here: bare node:http that answers every call with the same record. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { toJsonString } from "@bufbuild/protobuf";
import { InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { constant } from "./constant.ts";

const body = toJsonString(InvestorSchema, constant, { alwaysEmitImplicit: true });
const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };

const server = createServer((req, res) => {
  req.resume();
  req.on("end", () => {
    res.writeHead(200, headers);
    res.end(body);
  });
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
