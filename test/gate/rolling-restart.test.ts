import { writeFileSync } from "node:fs";
import { Agent } from "node:https";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { Readable } from "node:stream";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { buildGo, findPythonCallers, startCallers, toLine } from "../support/callers/callers.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { connectTo, describeWithMongo, needsMongo, startWithUsers } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { type Service, startService } from "../support/service.ts";
import { listen } from "../support/tcp.ts";
import { needs } from "../support/tools.ts";

const request = aCreate();

/** Callers that create records and get them without a pause, until they are to finish. */
interface EndlessCallers {
  finish(): Promise<{ created: number; failures: string[] }>;
}

/** Starts callers in a process of their own. */
function startProcess(
  command: string[],
  protocol: string,
  target: string,
  caFile = "",
): EndlessCallers {
  // Both services may be gone for a client that has not found the first one again.
  const methodConfig = [{ name: [{}], waitForReady: true }];
  const config = { loadBalancingConfig: [{ round_robin: {} }], methodConfig };
  const configFile = temporaryFile(JSON.stringify(config));
  const callers = startCallers([...command, protocol, target, configFile, caFile]);
  const { input, created, failures, finished } = callers;
  const line = toLine(request);
  const requests = new Readable({
    read() {
      this.push(line);
    },
  });
  requests.pipe(input);
  return {
    async finish() {
      requests.unpipe(input);
      input.end();
      await finished;
      return { created: created.length, failures };
    },
  };
}

/** Starts callers by Connect over HTTP/1.1. */
function startHttp1(baseUrl: string, ca: string): EndlessCallers {
  const agent = new Agent({ keepAlive: true, ca });
  onTestFinished(() => agent.destroy());
  const transport = createConnectTransport({ httpVersion: "1.1", baseUrl, nodeOptions: { agent } });
  const client = createClient(InvestorService, transport);
  const seen = { created: 0, failures: [] as string[] };
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

type Records = Awaited<ReturnType<typeof openRecords>>;

async function openRecords(url: string) {
  return (await connectTo(url)).db().collection("investors");
}

/** Restarts one of the services on its port, under the load of the callers. */
async function restart(services: Service[], index: number, env: NodeJS.ProcessEnv, all: Records) {
  const { child, exited, output, port } = services[index] as Service;
  const before = await all.countDocuments();
  await expect.poll(() => all.countDocuments()).toBeGreaterThan(before + 200);
  child.kill("SIGTERM");
  expect(await exited, output()).toBe(0);
  services[index] = await startService({ ...env, PORT: String(port) });
}

/** Expects that no call failed, and that each record is stored once. */
async function expectNothingLost(all: Records, callers: EndlessCallers[]): Promise<void> {
  const seen = await Promise.all(callers.map((each) => each.finish()));
  for (const { created, failures } of seen) {
    expect(failures).toEqual([]);
    expect(created).toBeGreaterThan(0);
  }
  const stored = await all.countDocuments();
  expect(stored).toBe(seen.reduce((sum, { created }) => sum + created, 0));
}

/** Starts a load balancer, which spreads new connections over the target ports. */
async function startBalancer(targets: number[]) {
  const balancer = { port: 0, targets };
  let count = 0;
  const server = createServer({ allowHalfOpen: true }, (client) => {
    count += 1;
    const port = balancer.targets[count % balancer.targets.length] ?? 0;
    const upstream = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    client.on("error", () => upstream.destroy()).pipe(upstream);
    upstream.on("error", () => client.destroy()).pipe(client);
  });
  balancer.port = await listen(server);
  return balancer;
}

describeWithMongo("a rolling restart of two services under load", "standalone", (mongo) => {
  it("loses no call by gRPC, also without a delay", needs("Go", "Python"), async () => {
    const env = { DATABASE_URL: mongo.url(), REQUEST_TIMEOUT: "30s" };
    const [go, python] = [buildGo(temporaryFolder()), await findPythonCallers()];
    const services = await Promise.all([startService(env), startService(env)]);
    const all = await openRecords(env.DATABASE_URL);
    const addresses = services.map(({ port }) => `127.0.0.1:${port}`).join(",");
    const callers = [go, python].map((command) => startProcess(command, "grpc", addresses));
    for (const i of [0, 1]) await restart(services, i, env, all);
    await expectNothingLost(all, callers);
  });

  it(
    "loses no call by gRPC, nor by Connect on HTTP/2 and HTTP/1.1 behind a balancer, with TLS",
    needs("Go", "Python"),
    async () => {
      const authority = await createAuthority();
      const folder = temporaryFolder();
      const tls = await writeServerFiles(folder, authority);
      const caFile = join(folder, "ca.crt");
      writeFileSync(caFile, authority.ca);
      const common = { REQUEST_TIMEOUT: "30s", DRAIN_DELAY: "2s" };
      const env = { DATABASE_URL: mongo.url(), ...common, ...tls };
      const [go, python] = [buildGo(temporaryFolder()), await findPythonCallers()];
      const services = await Promise.all([startService(env), startService(env)]);
      const all = await openRecords(env.DATABASE_URL);
      const addresses = services.map(({ port }) => `127.0.0.1:${port}`).join(",");
      const ports = services.map(({ port }) => port);
      const balancer = await startBalancer(ports);
      const url = `https://localhost:${balancer.port}`;
      const callers = [
        startProcess(go, "grpc", addresses, caFile),
        startProcess(python, "grpc", addresses, caFile),
        startProcess(go, "connect", url, caFile),
        startHttp1(url, authority.ca),
      ];
      for (const i of [0, 1]) {
        // As the probes would have it.
        balancer.targets = ports.toSpliced(i, 1);
        await restart(services, i, env, all);
        balancer.targets = ports;
      }
      await expectNothingLost(all, callers);
    },
  );
});

describe("a rolling restart to another user of MongoDB", needsMongo(), () => {
  it("loses no call", needs("Go", "Python"), async () => {
    const { db, root, urlOf } = await startWithUsers();
    const createUser = (name: string) =>
      db.command({ createUser: name, pwd: name, roles: ["readWrite"] });
    await createUser("first");
    const file = temporaryFile(urlOf("first", "first"));
    const env = { DATABASE_URL_FILE: file, REQUEST_TIMEOUT: "30s" };
    const [go, python] = [buildGo(temporaryFolder()), await findPythonCallers()];
    const services = await Promise.all([startService(env), startService(env)]);
    const all = root.db("investors").collection("investors");
    const addresses = services.map(({ port }) => `127.0.0.1:${port}`).join(",");
    const callers = [go, python].map((command) => startProcess(command, "grpc", addresses));
    await createUser("second");
    writeFileSync(file, urlOf("second", "second"));
    for (const i of [0, 1]) await restart(services, i, env, all);
    await db.command({ dropUser: "first" });
    const before = await all.countDocuments();
    await expect.poll(() => all.countDocuments()).toBeGreaterThan(before + 200);
    await expectNothingLost(all, callers);
  });
});
