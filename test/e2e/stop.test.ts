import { once } from "node:events";
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { Health, HealthCheckResponse_ServingStatus } from "../../gen/grpc/health/v1/health_pb.js";
import { openCall, rawConnection } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, lockDatabase, type Service, startService } from "../support/service.ts";

const healthClient = ({ grpcPort }: Service) =>
  createClient(Health, createGrpcTransport({ baseUrl: `http://127.0.0.1:${grpcPort}` }));

describe("SIGTERM and SIGINT", () => {
  it.each(["SIGTERM", "SIGINT"] as const)(
    "%s lets creates finish that are inside",
    async (signal) => {
      const service = await startService();
      const client = grpcClient(service);
      const release = lockDatabase(service);
      const inside = Promise.all(
        Array.from({ length: 50 }, () => client.createInvestor(aCreate())),
      );
      await delay(300);
      service.child.kill(signal);
      await delay(300);
      release();
      expect(await inside).toHaveLength(50);
      expect(await service.exited).toBe(0);
      const again = grpcClient(await startService({}, service.folder));
      expect((await again.listInvestors({})).investors).toHaveLength(50);
    },
  );

  it("is not held up by watchers, open reflection, idle clients or silent connections", async () => {
    const service = await startService();
    await grpcClient(service).createInvestor(aCreate());
    const watch = healthClient(service).watch({})[Symbol.asyncIterator]();
    await watch.next();
    openCall(
      rawConnection(service.grpcPort),
      "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    );
    const silent = connect(service.grpcPort, "127.0.0.1").on("error", () => {});
    onTestFinished(() => void silent.destroy());
    await once(silent, "connect");
    const start = performance.now();
    service.child.kill("SIGTERM");
    expect(await service.exited).toBe(0);
    expect(performance.now() - start).toBeLessThan(5_000);
    await watch.next().catch(() => {});
  });

  it("tells health checks first, and serves on during the drain delay", async () => {
    const service = await startService({ DRAIN_DELAY: "1500ms" });
    const health = healthClient(service);
    expect((await health.check({})).status).toBe(HealthCheckResponse_ServingStatus.SERVING);
    service.child.kill("SIGTERM");
    await expect
      .poll(async () => (await health.check({})).status)
      .toBe(HealthCheckResponse_ServingStatus.NOT_SERVING);
    await grpcClient(service).createInvestor(aCreate());
    expect(await service.exited).toBe(0);
  });

  it("cuts what has not finished at the drain timeout, and says so with status 1", async () => {
    const service = await startService({ DRAIN_TIMEOUT: "300ms", REQUEST_TIMEOUT: "4s" });
    const release = lockDatabase(service);
    const cut = grpcClient(service).createInvestor(aCreate());
    cut.catch(() => {});
    await delay(300);
    service.child.kill("SIGTERM");
    await expect(cut).rejects.toThrow();
    release();
    expect(await service.exited).toBe(1);
  });

  it("a second time cuts at once", async () => {
    const service = await startService();
    const release = lockDatabase(service);
    const cut = grpcClient(service).createInvestor(aCreate());
    cut.catch(() => {});
    await delay(300);
    service.child.kill("SIGTERM");
    await delay(100);
    service.child.kill("SIGTERM");
    await expect(cut).rejects.toThrow();
    release();
    expect(await service.exited).toBe(1);
  });
});
