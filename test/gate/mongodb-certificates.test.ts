import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createAuthority } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import { connectTo, needsMongo, startServer } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import { ask, grpcClient, startService, waitFor } from "../support/service.ts";

describe("The certificates for a MongoDB", needsMongo(), () => {
  it("are read again on SIGHUP, no call is lost, and old ones stay until new ones can be used", async () => {
    const folder = temporaryFolder();
    const path = (name: string) => join(folder, name);
    const [old, next] = await Promise.all([createAuthority("Old"), createAuthority("Next")]);
    const renew = async (name: string, authority: typeof old) => {
      const { cert, key } = await authority.sign(name);
      writeFileSync(path(`${name}.pem`), cert + key);
    };
    writeFileSync(path("ca.pem"), old.ca);
    await renew("client", old);
    await renew("mongod", old);
    // What the server trusts is of no matter here.
    writeFileSync(path("clients.pem"), old.ca + next.ca);
    const args = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", path("mongod.pem")];
    args.push("--tlsCAFile", path("clients.pem"));
    const server = await startServer({ args, ip: "0.0.0.0" });
    const { port } = server.instanceInfo ?? {};
    const tls = `tls=true&tlsCAFile=${path("ca.pem")}&tlsCertificateKeyFile=${path("client.pem")}`;
    const DATABASE_URL = `mongodb://127.0.0.1:${port}/?${tls}`;
    const service = await startService({ DATABASE_URL, REQUEST_TIMEOUT: "40s" });
    const admin = (await connectTo(DATABASE_URL)).db("admin");
    const own = [{ $currentOp: { idleConnections: true } }, { $match: { appName: /^investor/ } }];
    /** From which ports the service is connected. */
    const connected = async () => (await admin.aggregate(own).toArray()).map((each) => each.client);
    const { child, output } = service;
    const client = grpcClient(service);
    let created = 0;
    const create = async () => {
      await client.createInvestor(aCreate());
      created += 1;
    };
    await create();

    writeFileSync(path("ca.pem"), "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n");
    child.kill("SIGHUP");
    await expect.poll(output).toMatch(/DATABASE_URL names cannot be used: .*; the previous one/);
    writeFileSync(path("ca.pem"), old.ca + next.ca);
    await renew("client", next);
    const before = await connected();
    expect(before).not.toEqual([]);
    child.kill("SIGHUP");
    while (!output().includes("reloaded certificates for MongoDB")) await create();
    // The old connections stay as long as a call may take.
    do await create();
    while ((await connected()).some((each) => before.includes(each)));
    expect(output()).not.toContain("call failed");

    await server.stop({ doCleanup: false });
    await renew("mongod", next);
    writeFileSync(path("clients.pem"), next.ca);
    await server.start(true);
    await waitFor(async () => (await ask(service, "/readyz")).ok);
    await create();
    expect((await client.listInvestors({ pageSize: 1_000 })).investors.length).toBe(
      Math.min(created, 1_000),
    );
  });
});
