import { MongoClient, ObjectId, UUID } from "mongodb";
import { MongoMemoryServer } from "mongodb-memory-server-core";
import { expect, it, onTestFinished } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { anInvestor } from "../support/records.ts";
import { copy, copyHere, makeSqlite, openSqlite, tableOf } from "./copying.ts";

await describeWithMongo("a copy to and from MongoDB", "set of one", (mongo) => {
  it("keeps what is there, and tells conflicts", async () => {
    const folder = temporaryFolder();
    const investors = await makeSqlite(folder, "a.db", 1_500);
    const url = mongo.url();
    expect(await copyHere(["sqlite:a.db", url], { folder })).toMatchObject({ code: 0 });
    const other = anInvestor({ id: investors[7]?.id ?? "" });
    const store = await openSqlite(`${folder}/b.db`);
    await store.insert(other);
    await store.insert(anInvestor());
    await store.close();
    expect(await copyHere(["sqlite:b.db", url], { folder })).toEqual({
      code: 1,
      told: `error: conflicts with other content under the same ids, which stays: 1 (${other.id}); copied 1 record, and found 0 already there\n`,
    });
    expect(await copyHere(["sqlite:a.db", url], { folder })).toMatchObject({
      code: 0,
      told: expect.stringContaining("copied 0 records, and found 1,500 already there"),
    });
    expect((await copyHere([url, "sqlite:c.db"], { folder })).code).toBe(0);
    expect(tableOf(folder, "c.db").rows).toBe(1_501);
  });

  it.each([
    [
      "an id of another kind",
      { _id: new ObjectId("0123456789abcdef01234567") },
      "0123456789abcdef01234567",
    ],
    [
      "fields missing",
      { _id: new UUID("0123456789abcdef0123456789abcdef"), type: "individual" },
      "01234567-89ab-cdef-0123-456789abcdef",
    ],
  ])("ends at a document with %s, and names it", async (_, document, named) => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 3);
    const url = mongo.url();
    await copyHere(["sqlite:a.db", url], { folder });
    const client = await MongoClient.connect(url);
    await client.db().collection<{ _id: unknown }>("investors").insertOne(document);
    await client.close();
    const { code, told } = await copyHere([url, "sqlite:b.db"], { folder });
    expect(told).toMatch(/^error: cannot read mongodb:[^\n]* is no record; [^\n]*\n$/);
    expect(told).toContain(named);
    expect(code).toBe(1);
  });

  it("says that a source without records is none, and does not make it", async () => {
    const folder = temporaryFolder();
    const url = mongo.url();
    const { code, told } = await copyHere([url, "out.ndjson"], { folder });
    expect(told).toMatch(
      /^error: cannot read mongodb:\/\/[^\n]*: it holds no records; out.ndjson was not made\n$/,
    );
    expect(code).toBe(1);
    const client = await MongoClient.connect(url);
    expect(await client.db().listCollections().toArray()).toEqual([]);
    await client.close();
  });
});

await describeWithMongo("a MongoDB that cannot be used", "standalone", () => {
  it("is told in one line if it cannot be reached", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "a.db", 1);
    const env = { GONE: "mongodb://me:s3cret@127.0.0.1:1/x" };
    const name = "mongodb://127.0.0.1:1/x: connect ECONNREFUSED 127.0.0.1:1\n";
    expect(
      await Promise.all([
        copy(["env:GONE", "sqlite:b.db"], { folder, env }),
        copy(["sqlite:a.db", "env:GONE"], { folder, env }),
        copy(["env:GONE", "mongodb://127.0.0.1:1/y"], { folder, env }),
      ]),
    ).toMatchObject([
      { code: 1, told: `error: cannot read ${name}` },
      { code: 1, told: `error: cannot write to ${name}` },
      {
        code: 1,
        told: expect.stringMatching(/^error: cannot reach mongodb:[^\n]+REFUSED[^\n]+\n$/),
      },
    ]);
  });

  it("is told in one line if it gives no rights, without any content", async () => {
    const server = await MongoMemoryServer.create({
      instance: { storageEngine: "wiredTiger" },
      auth: {
        enable: true,
        customRootName: "root",
        customRootPwd: "root",
        extraUsers: [
          { createUser: "reader", pwd: "s3cret", roles: ["read"], database: "x" },
          { createUser: "nobody", pwd: "s3cret", roles: [], database: "x" },
        ],
      },
    });
    onTestFinished(async () => void (await server.stop()));
    const folder = temporaryFolder();
    const [investor] = await makeSqlite(folder, "a.db", 3);
    const urlOf = (user: string) =>
      `mongodb://${user}@127.0.0.1:${server.instanceInfo?.port}/x?authSource=x`;
    for (const [from, to] of [
      ["sqlite:a.db", urlOf("reader:s3cret")],
      ["sqlite:a.db", urlOf("reader:wr0ng")],
      ["sqlite:a.db", urlOf("nobody:s3cret")],
      [urlOf("nobody:s3cret"), "sqlite:b.db"],
    ] as const) {
      const begin = performance.now();
      const { code, told } = await copyHere([from, to], { folder });
      expect(told).toMatch(/^error: cannot (read|write to) mongodb:[^\n]+\n$/);
      expect(told).toMatch(/not authorized|Authentication failed|Unauthorized/);
      for (const secret of ["s3cret", "wr0ng", investor?.firstName, "Lovelace"]) {
        expect(told).not.toContain(secret);
      }
      expect(code).toBe(1);
      expect(performance.now() - begin).toBeLessThan(20_000);
    }
  });
});
