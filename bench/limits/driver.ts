import { MongoClient, UUID } from "mongodb";
import { v7 } from "uuid";
import { content } from "../content.ts";

/** How many creates and gets a second the driver alone makes in batches, one after the other. */
export async function measureDriver(url: string, seconds: number) {
  const client = await MongoClient.connect(url);
  const collection = client.db().collection<{ _id: UUID }>("driver");
  const ids: UUID[] = [];
  const creates = await repeat(seconds, 512, async (size) => {
    const documents = Array.from({ length: size }, () => ({ ...content, _id: new UUID(v7()) }));
    ids.push(...documents.map(({ _id }) => _id));
    await collection.insertMany(documents, { ordered: false, writeConcern: { w: "majority" } });
  });
  let at = 0;
  const gets = await repeat(seconds, 128, async (size) => {
    const wanted = ids.slice(at, at + size);
    at = at + 2 * size > ids.length ? 0 : at + size;
    const found = await collection
      .find({ _id: { $in: wanted } }, { batchSize: size + 1, readConcern: { level: "majority" } })
      .toArray();
    if (found.length !== size) throw new Error(`the driver found ${found.length} of ${size}`);
  });
  await client.close();
  return { creates, gets };
}

async function repeat(seconds: number, size: number, run: (size: number) => Promise<void>) {
  const start = performance.now();
  let count = 0;
  while (performance.now() < start + seconds * 1_000) {
    await run(size);
    count += size;
  }
  return (count * 1_000) / (performance.now() - start);
}
