import { expect, it, onTestFinished } from "vitest";
import { createMongoStore } from "../src/store/mongodb/mongodb.ts";
import { createAuthority } from "./support/certificates.ts";
import { temporaryFile } from "./support/folder.ts";
import { describeWithMongo, startServer } from "./support/mongodb.ts";

/** Why a store over this URL cannot serve. */
async function reasonOf(url: string): Promise<string> {
  const store = createMongoStore(url, { requestTimeoutMs: 4_000, observe() {}, onFatal() {} });
  onTestFinished(() => store.close());
  return store.ping().then(
    () => "it serves",
    ({ name, message }) => {
      expect(name).toBe("StoreUnavailableError");
      return message;
    },
  );
}

async function start(instance: object, auth?: object): Promise<number> {
  return (await startServer(instance, auth)).instanceInfo?.port ?? 0;
}

/** Expects these reasons, once the servers and their elections are over their start. */
async function expectReasons(table: [url: string, reason: string | RegExp][]): Promise<void> {
  await Promise.all(
    table.map(([url, reason]) =>
      expect.poll(() => reasonOf(url), { message: url }).toMatch(reason),
    ),
  );
}

describeWithMongo("A MongoDB that cannot be used names the setting:", "standalone", (mongo) => {
  it("host, port, replicaSet", async () => {
    const { port } = mongo.members()[0] ?? {};
    await expectReasons([
      [
        "mongodb://none.invalid/",
        /none.invalid:27017: getaddrinfo (ENOTFOUND|EAI_AGAIN) none.invalid$/,
      ],
      [
        "mongodb+srv://none.invalid/",
        /^querySrv (ENOTFOUND|ESERVFAIL|EREFUSED|ECONNREFUSED|ETIMEOUT) _mongodb._tcp.none.invalid$/,
      ],
      ["mongodb://127.0.0.1:9/", "127.0.0.1:9: connect ECONNREFUSED 127.0.0.1:9"],
      [
        `mongodb://127.0.0.1:${port}/?replicaSet=rs0`,
        /ReplicaSetNoPrimary rs0 of no host of the URL$/,
      ],
    ]);
  });

  it("user, password", async () => {
    const auth = { enable: true, customRootName: "root", customRootPwd: "s3cret" };
    const host = `127.0.0.1:${await start({}, { auth })}`;
    const refused = "Authentication failed. (AuthenticationFailed)";
    await expectReasons([
      [`mongodb://root:s3cret@${host}/`, "it serves"],
      [`mongodb://root:wrong@${host}/`, refused],
      [
        `mongodb://${host}/`,
        "MongoDB does not authorize this: check the user in the URL and its roles",
      ],
    ]);
  });

  it("tls, tlsCAFile", async () => {
    const authority = await createAuthority();
    const { cert, key } = await authority.sign("mongodb");
    const args = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", temporaryFile(cert + key)];
    const url = `mongodb://127.0.0.1:${await start({ args })}/?tls=true`;
    await expectReasons([
      [`${url}&tlsCAFile=${temporaryFile(authority.ca)}`, "it serves"],
      [url, "unable to verify the first certificate"],
    ]);
  });

  it("a set that is not initiated", async () => {
    const host = `127.0.0.1:${await start({ replSet: "rs0" })}`;
    const ghost = `${host}: RSGhost, which a new set is until rs.initiate()`;
    await expectReasons([
      [`mongodb://${host}/`, ghost],
      [`mongodb://${host}/?replicaSet=rs0`, ghost],
    ]);
  });
});
