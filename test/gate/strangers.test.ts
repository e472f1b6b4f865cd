import { expect, it } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const calls = 500;

it(
  "a client in Go that wants to watch the health of the service calls it",
  needs("Go"),
  async () => {
    const service = await startService();
    const config = {
      loadBalancingConfig: [{ round_robin: {} }],
      healthCheckConfig: { serviceName: "investor.v1.InvestorService" },
      methodConfig: [{ name: [{}], waitForReady: true }],
    };
    const target = `127.0.0.1:${service.grpcPort}`;
    const file = temporaryFile(JSON.stringify(config));
    const { input, created, failures, finished } = startCallers([
      ...buildGo(temporaryFolder()),
      "grpc",
      target,
      file,
      "",
    ]);
    for (let i = 0; i < calls; i += 1) input.write(toLine(aCreate()));
    input.end();
    await finished;
    expect(failures).toEqual([]);
    expect(created).toHaveLength(calls);
  },
);
