import { Binary, MongoClient } from "mongodb";
import { v4 } from "uuid";
import { expect, it, onTestFinished } from "vitest";
import { InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { createMongoStore } from "../../src/store/mongodb.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { anInvestor } from "../support/records.ts";
import { describeStoreContract } from "./contract.ts";

const open = (url: string) => {
  const store = createMongoStore({ url, requestTimeoutMs: 10_000, observe() {} });
  onTestFinished(() => store.close());
  return store;
};

await describeWithMongo("MongoDB, standalone", "standalone", (mongo) => {
  describeStoreContract("MongoDB, standalone", async () => {
    const url = mongo.url();
    return { open: async () => open(url) };
  });

  it("keeps a record as a document that others can read", async () => {
    const url = mongo.url();
    const record = anInvestor({ type: InvestorType.INSTITUTION });
    await open(url).insert(record);
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const [document] = await client.db().collection("investors").find().toArray();
    const { $typeName: _, id, type: __, ...texts } = record;
    expect(document).toEqual({ _id: expect.any(Binary), type: "institution", ...texts });
    const key = document?._id as unknown as Binary | undefined;
    expect(key?.sub_type).toBe(4);
    expect(key?.toUUID().toString()).toBe(id);
  });

  it("uses the database investors if the URL names none", async () => {
    const url = mongo.url().replace(/\/test-[^?]*/, "/");
    const record = anInvestor({ lastName: v4() });
    await open(url).insert(record);
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const found = client
      .db("investors")
      .collection("investors")
      .find({ lastName: record.lastName });
    expect(await found.toArray()).toHaveLength(1);
  });

  it("reports a record that the server refuses alone, and stores its neighbours", async () => {
    const url = mongo.url();
    const client = await MongoClient.connect(url);
    onTestFinished(() => client.close());
    const validator = { lastName: { $ne: "refused" } };
    await client.db().createCollection("investors", { validator });
    const store = open(url);
    const records = Array.from({ length: 50 }, (_, i) =>
      anInvestor({ lastName: i === 20 ? "refused" : "fine" }),
    );
    const outcomes = await Promise.allSettled(records.map((record) => store.insert(record)));
    const refused = outcomes.flatMap(({ status }, i) => (status === "rejected" ? [i] : []));
    expect(refused).toEqual([20]);
    expect(await store.list({ limit: 100 })).toHaveLength(49);
  });
});

await describeWithMongo("MongoDB, three members", "replica set", (mongo) => {
  describeStoreContract("MongoDB, three members", async () => {
    const url = mongo.url();
    return { open: async () => open(url) };
  });
});

it("never repeats a malformed URL, which may hold a password", () => {
  for (const url of ["mongodb://user:s3cret@host:x/", "mongodb://user:s3cret@host/?w=x&foo=%"]) {
    expect(() => open(url)).toThrow();
    expect(() => open(url)).not.toThrow("s3cret");
  }
});
