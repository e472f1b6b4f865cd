/**
 * NestJS with its gRPC transport, and mongoose. Started with the URL of a database; prints
 * the port that it serves on. Decorators are applied by hand, since Node.js runs none.
 */
import "reflect-metadata";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { Controller, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { GrpcMethod, type MicroserviceOptions, Transport } from "@nestjs/microservices";
import mongoose from "mongoose";
import { v7 } from "uuid";
import { jsonContent } from "../content.ts";

await mongoose.connect(String(process.argv[2]), { readConcernLevel: "majority", w: "majority" });
const Investor = mongoose.model(
  "Investor",
  new mongoose.Schema(
    {
      _id: { type: mongoose.Schema.Types.UUID },
      ...Object.fromEntries(Object.keys(jsonContent).map((name) => [name, String])),
    },
    { versionKey: false },
  ),
  "investors",
);

class InvestorController {
  async createInvestor(request: Record<string, unknown>) {
    const id = v7();
    await Investor.create({ _id: id, ...request });
    return { ...request, id };
  }

  async getInvestor({ id }: { id: string }) {
    const record = await Investor.findById(id).lean();
    return { ...record, id };
  }
}
Controller()(InvestorController);
for (const method of ["createInvestor", "getInvestor"] as const) {
  const descriptor = Object.getOwnPropertyDescriptor(InvestorController.prototype, method);
  const name = `${method.charAt(0).toUpperCase()}${method.slice(1)}`;
  GrpcMethod("InvestorService", name)(InvestorController.prototype, method, descriptor as never);
}

class AppModule {}
Module({ controllers: [InvestorController] })(AppModule);

const port = await freePort();
const app = await NestFactory.createMicroservice<MicroserviceOptions>(AppModule, {
  logger: false,
  transport: Transport.GRPC,
  options: {
    url: `127.0.0.1:${port}`,
    package: "investor.v1",
    protoPath: join(import.meta.dirname, "../../proto/investor/v1/investor.proto"),
    loader: { enums: String, defaults: true },
  },
});
await app.listen();
console.log(port);

/** NestJS does not tell which port it got. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const { port } = server.address() as AddressInfo;
  await new Promise((done) => server.close(done));
  return port;
}
