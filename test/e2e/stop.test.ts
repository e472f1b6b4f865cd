import { once } from "node:events";
import { existsSync, readdirSync, readlinkSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Server } from "node:net";
import { join, resolve } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { Health, HealthCheckResponse_ServingStatus } from "../../gen/grpc/health/v1/health_pb.js";
import { temporaryFolder } from "../support/folder.ts";
import { hasPython } from "../support/python.ts";
import { openCall, rawConnection } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import {
  accepts,
  grpcClient,
  lockDatabase,
  run,
  runGroup,
  type Service,
  startService,
  untilInFlight,
  untilWritten,
  waitFor,
} from "../support/service.ts";

const healthClient = ({ grpcPort }: Service) =>
  createClient(Health, createGrpcTransport({ baseUrl: `http://127.0.0.1:${grpcPort}` }));

const root = resolve(import.meta.dirname, "../..");

const portOf = (server: Server) => (server.address() as AddressInfo).port;

/** A port that nobody listens on. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const port = portOf(server);
  server.close();
  await once(server, "close");
  return port;
}

/** Whether a process has opened the file of the service, as Linux tells it. */
function hasOpenedFile(pid: number | undefined): boolean {
  const folder = `/proc/${pid}/fd`;
  return readdirSync(folder).some((fd) => {
    try {
      return readlinkSync(`${folder}/${fd}`).endsWith("/investors.db");
    } catch {
      // It has been closed by now.
      return false;
    }
  });
}

describe("a log whose disk is full", () => {
  it.runIf(existsSync("/dev/full"))("does not end the service", async () => {
    const [grpcPort, httpPort] = [await freePort(), await freePort()];
    const env = { ...process.env, GRPC_PORT: String(grpcPort), HTTP_PORT: String(httpPort) };
    const args = ["-c", 'exec "$0" src/bin.ts --database-url "$1" 2>/dev/full'];
    const url = `sqlite:${join(temporaryFolder(), "investors.db")}`;
    const options = { cwd: root, env };
    const { child, exited } = runGroup("sh", [...args, process.execPath, url], options);
    await waitFor(() => accepts(httpPort));
    const client = grpcClient({ grpcPort });
    await client.createInvestor(aCreate());
    for (let i = 0; i < 3; i += 1) process.kill(child.pid ?? 0, "SIGHUP");
    await client.createInvestor(aCreate());
    child.kill("SIGTERM");
    expect(await exited).toBe(0);
  });
});

describe("SIGTERM and SIGINT", () => {
  it.each(["SIGTERM", "SIGINT"] as const)("%s lets creates in flight finish", async (signal) => {
    const service = await startService();
    const client = grpcClient(service);
    const release = lockDatabase(service);
    const inFlight = Promise.all(
      Array.from({ length: 50 }, () => client.createInvestor(aCreate())),
    );
    await untilInFlight(service, 50);
    service.child.kill(signal);
    await waitFor(async () => service.output().includes("shutting down"));
    await delay(100);
    release();
    expect(await inFlight).toHaveLength(50);
    expect(await service.exited).toBe(0);
    const again = grpcClient(await startService({}, service.folder));
    expect((await again.listInvestors({})).investors).toHaveLength(50);
  });

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
    const service = await startService({ DRAIN_DELAY: "4s" });
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
    await untilInFlight(service, 1);
    service.child.kill("SIGTERM");
    await expect(cut).rejects.toThrow();
    release();
    expect(await service.exited).toBe(1);
  });

  it("a second time end the process at once, whatever is waited for", async () => {
    const service = await startService();
    const release = lockDatabase(service);
    onTestFinished(release);
    const cut = grpcClient(service).createInvestor(aCreate());
    cut.catch(() => {});
    await untilInFlight(service, 1);
    service.child.kill("SIGTERM");
    await waitFor(async () => service.output().includes("shutting down"));
    const start = performance.now();
    service.child.kill("SIGINT");
    await expect(cut).rejects.toThrow();
    expect(await service.exited).toBe("SIGKILL");
    expect(performance.now() - start).toBeLessThan(1_000);
  });

  it("end a service that still waits for its file", async () => {
    const { folder, child, exited } = await startService();
    child.kill("SIGTERM");
    await exited;
    onTestFinished(lockDatabase({ folder }));
    const waiting = run([], { GRPC_PORT: "0", HTTP_PORT: "0" }, folder);
    await waitFor(async () => hasOpenedFile(waiting.child.pid));
    await delay(300);
    waiting.child.kill("SIGTERM");
    expect(await waiting.exited).toBe(0);
    expect(waiting.output()).not.toContain("serving");
  });

  it("end a service that still waits for its database, and listens on no port", async () => {
    const database = createServer().listen(0, "127.0.0.1");
    onTestFinished(() => void database.close());
    await once(database, "listening");
    const [grpcPort, httpPort] = [await freePort(), await freePort()];
    const waiting = run(
      [],
      {
        DATABASE_URL: `mongodb://127.0.0.1:${portOf(database)}/`,
        GRPC_PORT: String(grpcPort),
        HTTP_PORT: String(httpPort),
        // Behind five seconds, it serves without.
        REQUEST_TIMEOUT: "60s",
      },
      temporaryFolder(),
    );
    await once(database, "connection");
    for (let i = 0; i < 20; i += 1) {
      await delay(50);
      expect([await accepts(grpcPort), await accepts(httpPort)]).toEqual([false, false]);
    }
    const start = performance.now();
    waiting.child.kill("SIGTERM");
    expect(await waiting.exited).toBe(0);
    expect(performance.now() - start).toBeLessThan(3_000);
    expect(waiting.output()).not.toContain("serving");
  });

  it("are one if the same comes twice within a second", async () => {
    const service = await startService();
    const client = grpcClient(service);
    const release = lockDatabase(service);
    const inFlight = client.createInvestor(aCreate());
    await untilInFlight(service, 1);
    service.child.kill("SIGTERM");
    await untilWritten(service, "shutting down");
    service.child.kill("SIGTERM");
    await delay(200);
    release();
    await inFlight;
    expect(await service.exited).toBe(0);
  });
});

describe("SIGHUP", () => {
  it("changes nothing where there is nothing to read again", async () => {
    const service = await startService();
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain('"nothing to reload"');
    await grpcClient(service).createInvestor(aCreate());
    service.child.kill("SIGTERM");
    expect(await service.exited).toBe(0);
  });
});

describe.skipIf(!hasPython)("A service on a terminal", () => {
  it("shuts down when that closes, and lets creates in flight finish", async () => {
    const folder = temporaryFolder();
    const program = "import pty, sys; pty.spawn(sys.argv[1:])";
    const { PATH } = process.env;
    const env = { PATH, GRPC_PORT: "0", HTTP_PORT: "0" };
    const args = ["-c", program, process.execPath, join(root, "src/bin.ts")];
    const { child: terminal, output } = runGroup("python3", args, { cwd: folder, env });
    await waitFor(async () => output().includes("serving"));
    const [grpcPort, httpPort] = ["grpc", "http"].map((scheme) =>
      Number(new RegExp(`${scheme}://[^ ]*?:(\\d+)`).exec(output())?.[1]),
    ) as [number, number];
    const pid = Number(/\((\d+)\)/.exec(output())?.[1]);
    const release = lockDatabase({ folder });
    const inFlight = grpcClient({ grpcPort }).createInvestor(aCreate());
    await untilInFlight({ httpPort }, 1);
    terminal.kill("SIGKILL");
    await waitFor(async () => !(await accepts(grpcPort)));
    release();
    await inFlight;
    await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
  });
});

describe("npm start", () => {
  /** Starts the service as README says, in a process group of its own. */
  async function npmStart() {
    const { PATH } = process.env;
    const folder = temporaryFolder();
    const { child, output, exited } = runGroup("npm", ["start"], {
      cwd: root,
      env: { PATH, DATABASE_URL: `sqlite:${folder}/a.db`, GRPC_PORT: "0", HTTP_PORT: "0" },
    });
    const line = await waitFor(async () =>
      output()
        .split("\n")
        .find((each) => /serving/.test(each)),
    );
    const { pid } = JSON.parse(line) as { pid: number };
    const group = -(child.pid ?? 0);
    return { child, pid, group, exited, grpcPort: Number(/grpc:\/\/[^ "]*:(\d+)/.exec(line)?.[1]) };
  }

  it("ends with status 0 on Ctrl-C under load, and no call is cut", async () => {
    const { group, exited, grpcPort } = await npmStart();
    const failures: unknown[] = [];
    let stored = 0;
    const callers = Array.from({ length: 16 }, async () => {
      const client = grpcClient({ grpcPort });
      while (failures.length < 16) {
        await client.createInvestor(aCreate()).then(
          () => {
            stored += 1;
          },
          (error) => failures.push(error),
        );
      }
    });
    await waitFor(async () => stored > 100);
    process.kill(group, "SIGINT");
    expect(await exited).toBe(0);
    await Promise.all(callers);
    for (const error of failures) {
      expect(ConnectError.from(error).message).toMatch(/^\[unavailable\]|REFUSED_STREAM/);
    }
  });

  it("passes SIGTERM on, and leaves no process behind", async () => {
    const { child, pid, exited } = await npmStart();
    child.kill("SIGTERM");
    await exited;
    await expect.poll(() => existsSync(`/proc/${pid}`)).toBe(false);
  });
});
