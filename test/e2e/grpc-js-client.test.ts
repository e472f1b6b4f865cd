import { promisify } from "node:util";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Client, credentials, type Metadata, type ServiceError } from "@grpc/grpc-js";
import { expect, it, onTestFinished } from "vitest";
import { StatusSchema } from "../../gen/google/rpc/status_pb.js";
import { type Investor, InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";

it("a grpc-js client reads records, and the details of errors", async () => {
  const service = await startService();
  const client = new Client(`localhost:${service.grpcPort}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const { input, output, name, parent } = InvestorService.method.getInvestor;
  const get = promisify(
    (id: string, done: (error: ServiceError | null, value?: Investor) => void) =>
      client.makeUnaryRequest<Uint8Array, Investor>(
        `/${parent.typeName}/${name}`,
        (bytes) => Buffer.from(bytes),
        (bytes) => fromBinary(output, bytes),
        toBinary(input, create(input, { id })),
        done,
      ),
  );

  const investor = await grpcClient(service).createInvestor(aCreate());
  expect(await get(investor.id)).toEqual(investor);
  const error = await get("").catch((reason: { metadata: Metadata }) => reason);
  const [details] = (error as { metadata: Metadata }).metadata.get("grpc-status-details-bin");
  const status = fromBinary(StatusSchema, details as Buffer);
  expect(status.code).toBe(3);
  expect(status.details.map(({ typeUrl }) => typeUrl)).toEqual([
    "type.googleapis.com/google.rpc.ErrorInfo",
    "type.googleapis.com/google.rpc.BadRequest",
  ]);
});
