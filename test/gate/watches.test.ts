/** Health watches on as many connections as there may be: others are served. */
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { connect as connectTls } from "node:tls";
import { expect, it, onTestFinished } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { createAuthority, getOverTls, writeServerFiles } from "../support/certificates.ts";
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
function holdWatches(connections: number, open: () => { closed: Promise<unknown> }): void {
  let isOver = false;
  onTestFinished(() => {
    isOver = true;
  });
  const again = async () => {
    for (; !isOver; await delay(1_000)) await open().closed.catch(() => {});
  };
  for (let i = 0; i < connections; i += 1) void again();
}

it(
  "goes on serving clients in Go that watch its health beside their calls",
  needs("Go"),
  async () => {
    const service = await startService();
    holdWatches(1_100, () => openWire(service.grpcPort, watch));
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

it("goes on serving probes and new clients over TLS", async () => {
  const folder = temporaryFolder();
  const authority = await createAuthority();
  const files = await writeServerFiles(folder, authority);
  const service = await startService({ ...files, MAX_CONNECTIONS: "256" });
  writeFileSync(join(folder, "ca.crt"), authority.ca);
  holdWatches(300, () => {
    const socket = connectTls({
      port: service.grpcPort,
      ALPNProtocols: ["h2"],
      servername: "localhost",
      ca: authority.ca,
    });
    socket.on("error", () => {}).resume();
    onTestFinished(() => void socket.destroy());
    socket.write(watch);
    return { closed: once(socket, "close") };
  });
  await waitFor(() => service.output().includes("watch_replaced"));
  for (let i = 0; i < 40; i += 1) {
    expect(await getOverTls(service, "/healthz", { ca: authority.ca })).toContain("alive");
  }
});
