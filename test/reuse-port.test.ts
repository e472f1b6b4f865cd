import { get } from "node:http";
import { expect, it } from "vitest";
import { describeWithMongo } from "./support/mongodb.ts";
import { end, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** The statuses of twenty lists, each on a connection of its own. */
function listTwentyTimes(port: number): Promise<(number | undefined)[]> {
  const options = { port, path: "/v1/investors?pageSize=1", agent: false };
  const list = () =>
    new Promise<number | undefined>((resolve, reject) => {
      get(options, (res) => resolve(res.resume().statusCode)).on("error", reject);
    });
  return Promise.all(Array.from({ length: 20 }, list));
}

describeWithMongo("processes with --reuse-port", "standalone", (mongo) => {
  it("share their ports, of which one takes all once it is alone", needs("Linux"), async () => {
    const env = { DATABASE_URL: mongo.url(), REUSE_PORT: "true", LOG_LEVEL: "debug" };
    const first = await startService(env);
    const ports = { GRPC_PORT: `${first.grpcPort}`, HTTP_PORT: `${first.httpPort}` };
    const second = await startService({ ...env, ...ports });
    const allServed = Array(20).fill(200);
    expect(await listTwentyTimes(first.httpPort)).toEqual(allServed);
    for (const { output } of [first, second]) await expect.poll(output).toContain("ListInvestors");
    expect(await end(second)).toBe(0);
    expect(await listTwentyTimes(first.httpPort)).toEqual(allServed);
  });
});
