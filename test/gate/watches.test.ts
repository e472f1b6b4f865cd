/** Health watches on as many connections as there may be: others are served, as behind TLS in proxies.test.ts. */
import { setTimeout as delay } from "node:timers/promises";
import { expect, it, onTestFinished } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { clientPreface, fieldsOf, openStream, sendData } from "../support/http2-frames.ts";
import { messages, paths } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import { startService, waitFor } from "../support/service.ts";
import { openWire } from "../support/tcp.ts";
import { needs } from "../support/tools.ts";

const calls = 500;
const watch = Buffer.concat([
  clientPreface,
  openStream(1, fieldsOf(paths.watch)),
  sendData(1, messages.empty, true),
]);

/** Has a stranger open connections again and again, of which each has a watch, until the end of the test. */
function holdWatches(connections: number, port: number): void {
  let isOver = false;
  onTestFinished(() => {
    isOver = true;
  });
  const again = async () => {
    for (; !isOver; await delay(1_000)) await openWire(port, watch).closed;
  };
  for (let i = 0; i < connections; i += 1) void again();
}

it(
  "goes on serving clients in Go that watch its health beside their calls",
  needs("Go"),
  async () => {
    const service = await startService();
    holdWatches(1_100, service.grpcPort);
    await waitFor(() => service.output().includes("watch_replaced"));
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
