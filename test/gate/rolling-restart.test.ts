import { writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { Readable } from "node:stream";
import type { Db } from "mongodb";
import { describe, expect, it } from "vitest";
import { buildGo, findPythonCallers, startCallers, toLine } from "../support/callers/callers.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { clientsOf } from "../support/clients.ts";
import { startWriters } from "../support/copying.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { connectTo, needsMongo, startServer, startWithUsers } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { end, startService } from "../support/service.ts";
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

/** Starts callers by Connect over HTTP/1.1, of which none may fail, and which only create. */
function startHttp1(port: number, ca: string): EndlessCallers {
  const { stop } = startWriters(clientsOf({ port }, { tls: { ca } }).Connect);
  return { finish: async () => ({ created: (await stop()).length, failures: [] }) };
}

/** Starts two services on one database. */
async function startTwo(db: Db, settings: NodeJS.ProcessEnv) {
  const env = { REQUEST_TIMEOUT: "30s", ...settings };
  const services = await Promise.all([startService(env), startService(env)]);
  const ports = services.map(({ port }) => port);
  const records = db.collection("investors");

  /** Waits until callers have created some more. */
  async function untilUsed(): Promise<void> {
    const before = await records.countDocuments();
    await expect.poll(() => records.countDocuments()).toBeGreaterThan(before + 200);
  }

  return {
    ports,
    addresses: ports.map((port) => `127.0.0.1:${port}`).join(),
    untilUsed,
    /** Restarts each on its port, under the load of the callers. */
    async restart(onEnd = (_index: number) => {}): Promise<void> {
      for (const [index, service] of services.entries()) {
        await untilUsed();
        onEnd(index);
        expect(await end(service), service.output()).toBe(0);
        await startService({ ...env, PORT: String(service.port) });
      }
    },
    /** Expects that no call failed, and that each record is stored once. */
    async expectNothingLost(callers: EndlessCallers[]): Promise<void> {
      const seen = await Promise.all(callers.map((each) => each.finish()));
      for (const { created, failures } of seen) {
        expect(failures).toEqual([]);
        expect(created).toBeGreaterThan(0);
      }
      const created = seen.reduce((sum, each) => sum + each.created, 0);
      expect(await records.countDocuments()).toBe(created);
    },
  };
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

describe("a rolling restart of two services under load", needsMongo(), () => {
  it(
    "to another user of MongoDB loses no call by gRPC, also without a delay",
    needs("Go", "Python"),
    async () => {
      const { db, urlOf } = await startWithUsers();
      const createUser = (name: string) =>
        db.command({ createUser: name, pwd: name, roles: ["readWrite"] });
      await createUser("first");
      const file = temporaryFile(urlOf("first", "first"));
      const [go, python] = [buildGo(temporaryFolder()), await findPythonCallers()];
      const services = await startTwo(db, { DATABASE_URL_FILE: file });
      const callers = [go, python].map((each) => startProcess(each, "grpc", services.addresses));
      await createUser("second");
      writeFileSync(file, urlOf("second", "second"));
      await services.restart();
      await db.command({ dropUser: "first" });
      await services.untilUsed();
      await services.expectNothingLost(callers);
    },
  );

  it(
    "loses no call by gRPC, nor by Connect on HTTP/2 and HTTP/1.1 behind a balancer, with TLS",
    needs("Go", "Python"),
    async () => {
      const authority = await createAuthority();
      const tls = await writeServerFiles(temporaryFolder(), authority);
      const caFile = temporaryFile(authority.ca);
      const url = (await startServer()).getUri("investors");
      const [go, python] = [buildGo(temporaryFolder()), await findPythonCallers()];
      const db = (await connectTo(url)).db();
      const services = await startTwo(db, { DATABASE_URL: url, DRAIN_DELAY: "2s", ...tls });
      const balancer = await startBalancer(services.ports);
      const callers = [
        startProcess(go, "grpc", services.addresses, caFile),
        startProcess(python, "grpc", services.addresses, caFile),
        startProcess(go, "connect", `https://localhost:${balancer.port}`, caFile),
        startHttp1(balancer.port, authority.ca),
      ];
      // As the probes would have it.
      await services.restart((index) => {
        balancer.targets = services.ports.toSpliced(index, 1);
      });
      await services.expectNothingLost(callers);
    },
  );
});
