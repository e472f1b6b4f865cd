import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { Agent } from "node:https";
import { type AddressInfo, connect, createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { create, toBinary, toJsonString } from "@bufbuild/protobuf";
import { createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { MongoClient } from "mongodb";
import { expect, it, onTestFinished } from "vitest";
import { CreateInvestorRequestSchema, InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { findPython, hasPython } from "../support/python.ts";
import { aCreate } from "../support/records.ts";
import { type Service, startService } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";

const here = join(import.meta.dirname, "rolling-restart");
const hasGo = hasTool("go", ["version"]);
const request = create(CreateInvestorRequestSchema, aCreate());

/** What clients saw that create records and get them. */
interface Seen {
  created: number;
  failures: string[];
}

/** Clients that call without a pause; they end their last calls when they are told to. */
type Clients = { finish(): Promise<Seen> };

/** Clients in a process of their own. */
function startProcess(program: string, args: string[], env = {}): Clients {
  const { PATH, HOME } = process.env;
  const child = spawn(program, args, { cwd: here, env: { PATH, HOME, ...env } });
  onTestFinished(() => void child.kill("SIGKILL"));
  let output = "";
  child.stdout.setEncoding("utf8").on("data", (text) => {
    output += text;
  });
  child.stderr.pipe(process.stderr);
  const closed = once(child, "close");
  return {
    async finish() {
      child.stdin.end();
      await closed;
      return JSON.parse(output) as Seen;
    },
  };
}

/** Clients in this process. */
function startClients(transport: Transport): Clients {
  const client = createClient(InvestorService, transport);
  const seen: Seen = { created: 0, failures: [] };
  let isEnding = false;
  const callers = Array.from({ length: 16 }, async () => {
    while (!isEnding) {
      try {
        const { id } = await client.createInvestor(request);
        await client.getInvestor({ id });
        seen.created += 1;
      } catch (error) {
        seen.failures.push(String(error));
      }
    }
  });
  return {
    async finish() {
      isEnding = true;
      await Promise.all(callers);
      return seen;
    },
  };
}

/** Restarts one of the services on its ports. */
async function restart(services: Service[], index: number, env: NodeJS.ProcessEnv) {
  const service = services[index];
  if (service === undefined) throw new Error("there is no such service");
  const { child, exited, output, grpcPort, httpPort } = service;
  await delay(1_000);
  child.kill("SIGTERM");
  expect(await exited, output()).toBe(0);
  const ports = { GRPC_PORT: String(grpcPort), HTTP_PORT: String(httpPort) };
  services[index] = await startService({ ...env, ...ports });
}

/** What the clients saw together, after which as many records are stored. */
async function expectNothingLost(url: string, clients: Clients[]): Promise<void> {
  const seen = await Promise.all(clients.map((each) => each.finish()));
  for (const { created, failures } of seen) {
    expect(failures).toEqual([]);
    expect(created).toBeGreaterThan(50);
  }
  const mongo = await MongoClient.connect(url);
  onTestFinished(() => mongo.close());
  const stored = await mongo.db().collection("investors").countDocuments();
  expect(stored).toBe(seen.reduce((sum, { created }) => sum + created, 0));
}

/** Compiles the clients in Go. */
function buildGo(): string {
  const program = join(temporaryFolder(), "clients");
  const { status } = spawnSync("go", ["build", "-o", program, "."], { cwd: here });
  expect(status).toBe(0);
  return program;
}

/** A load balancer for connections. */
interface Balancer {
  readonly port: number;
  /** Where new connections go. */
  targets: number[];
}

async function startBalancer(targets: number[]): Promise<Balancer> {
  const balancer = { port: 0, targets };
  let count = 0;
  const server = createServer({ allowHalfOpen: true }, (client) => {
    count += 1;
    const target = balancer.targets[count % balancer.targets.length] ?? 0;
    const upstream = connect({ port: target, host: "127.0.0.1", allowHalfOpen: true });
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.on("error", () => other.destroy()).pipe(other);
    }
  });
  onTestFinished(() => void server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  balancer.port = (server.address() as AddressInfo).port;
  return balancer;
}

await describeWithMongo("a rolling restart of two services under load", "standalone", (mongo) => {
  it.skipIf(!hasGo || !hasPython)(
    "loses no call of Go and Python by gRPC",
    async () => {
      const env = { DATABASE_URL: mongo.url(), REQUEST_TIMEOUT: "30s" };
      const programs = [
        [buildGo(), "grpc"],
        [await findPython(), "callers.py"],
      ] as const;
      const services = await Promise.all([startService(env), startService(env)]);
      const addresses = services.map(({ grpcPort }) => `127.0.0.1:${grpcPort}`).join(",");
      const hex = Buffer.from(toBinary(CreateInvestorRequestSchema, request)).toString("hex");
      const clients = programs.map(([program, name]) =>
        startProcess(program, [name, addresses, hex]),
      );
      for (const i of [0, 1, 0, 1]) await restart(services, i, env);
      await expectNothingLost(env.DATABASE_URL, clients);
    },
    300_000,
  );

  it.skipIf(!hasGo)(
    "loses no call by Connect, on HTTP/2 and HTTP/1.1, behind a balancer and with a drain delay",
    async () => {
      const authority = await createAuthority();
      const folder = temporaryFolder();
      const env = {
        DATABASE_URL: mongo.url(),
        REQUEST_TIMEOUT: "30s",
        DRAIN_DELAY: "2s",
        ...(await writeServerFiles(folder, authority)),
      };
      const { ca } = authority;
      const program = buildGo();
      const services = await Promise.all([startService(env), startService(env)]);
      const ports = services.map(({ httpPort }) => httpPort);
      const balancer = await startBalancer(ports);
      const baseUrl = `https://localhost:${balancer.port}`;
      const CA_FILE = join(folder, "ca.crt");
      writeFileSync(CA_FILE, ca);
      const agent = new Agent({ keepAlive: true, ca });
      onTestFinished(() => agent.destroy());
      const clients = [
        startProcess(
          program,
          ["connect", baseUrl, toJsonString(CreateInvestorRequestSchema, request)],
          { CA_FILE },
        ),
        startClients(
          createConnectTransport({ httpVersion: "1.1", baseUrl, nodeOptions: { agent } }),
        ),
      ];
      for (const i of [0, 1, 0, 1]) {
        // As its probes tell it.
        balancer.targets = ports.toSpliced(i, 1);
        await restart(services, i, env);
        balancer.targets = ports;
      }
      await expectNothingLost(env.DATABASE_URL, clients);
    },
    300_000,
  );
});
