import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Client, credentials } from "@grpc/grpc-js";
import { MongoClient } from "mongodb";
import { expect, it, onTestFinished } from "vitest";
import { type Investor, InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { describeWithMongo } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { type Service, startService } from "../support/service.ts";

const { createInvestor, getInvestor } = InvestorService.method;

/** A client that spreads its calls over the services. */
function balancingClient(services: Service[]) {
  const addresses = services.map(({ grpcPort }) => `127.0.0.1:${grpcPort}`);
  const client = new Client(`ipv4:${addresses.join(",")}`, credentials.createInsecure(), {
    "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 200,
  });
  onTestFinished(() => client.close());
  return (method: typeof createInvestor | typeof getInvestor, request: Uint8Array) =>
    new Promise<Investor>((resolve, reject) => {
      client.makeUnaryRequest<Uint8Array, Investor>(
        `/${method.parent.typeName}/${method.name}`,
        (bytes) => Buffer.from(bytes),
        (bytes) => fromBinary(method.output, bytes),
        request,
        (error, answer) => (answer ? resolve(answer) : reject(error)),
      );
    });
}

await describeWithMongo("two processes on one MongoDB", "standalone", (mongo) => {
  it("can be restarted one after the other under load, and no call fails", async () => {
    const url = mongo.url();
    const services = await Promise.all([1, 2].map(() => startService({ DATABASE_URL: url })));
    const call = balancingClient(services);
    let isDone = false;
    const callers = Array.from({ length: 16 }, async () => {
      const ids: string[] = [];
      while (!isDone) {
        const request = create(createInvestor.input, aCreate());
        const { id } = await call(createInvestor, toBinary(createInvestor.input, request));
        const lookup = create(getInvestor.input, { id });
        expect((await call(getInvestor, toBinary(getInvestor.input, lookup))).id).toBe(id);
        ids.push(id);
      }
      return ids;
    });
    for (let round = 0; round < 3; round += 1) {
      for (const [i, service] of services.entries()) {
        service.child.kill("SIGTERM");
        expect(await service.exited, service.output()).toBe(0);
        const ports = {
          GRPC_PORT: String(service.grpcPort),
          HTTP_PORT: String(service.httpPort),
        };
        services[i] = await startService({ DATABASE_URL: url, ...ports });
        // The client finds it again before the other one goes.
        await expect
          .poll(async () => (await metrics(services[i])).includes('transport="grpc"'), {
            timeout: 15_000,
          })
          .toBe(true);
      }
    }
    isDone = true;
    const ids = (await Promise.all(callers)).flat();
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    expect(await client.db().collection("investors").countDocuments()).toBe(ids.length);
    expect(new Set(ids).size).toBe(ids.length);
  });
});

async function metrics(service: Service | undefined): Promise<string> {
  return (await fetch(`http://127.0.0.1:${service?.httpPort}/metrics`)).text();
}
