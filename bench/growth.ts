import { join } from "node:path";
import { copy } from "./copy.ts";
import { fillSqlite, mongoDatabase, sqliteDatabase } from "./database.ts";
import type { Measured } from "./load/load.ts";
import type { MongoUrl, Plan, Store } from "./plan.ts";
import { type Contestant, measure, toContestant, verify } from "./race.ts";
import { startService } from "./server.ts";
import { creates, gets, type Work } from "./work.ts";

/** How the service does at a size, by gRPC. */
export interface Growth {
  store: Store;
  records: number;
  callers: number;
  create: Measured;
  get: Measured;
}

/** Measures the service alone with few and many records and callers. */
export async function measureGrowth(plan: Plan, toUrl: MongoUrl | undefined): Promise<Growth[]> {
  const { folder, records: sizes, say } = plan;
  const growth: Growth[] = [];
  for (const records of sizes) {
    say(`growth: ${records} records`);
    const path = join(folder, `${records}.db`);
    const file = `sqlite:${path}`;
    await fillSqlite(path, records);
    const url = toUrl?.(`growth-${records}`);
    if (url !== undefined) {
      await copy(file, url);
      const mongoDb = toContestant(await startService(url), await mongoDatabase(url));
      growth.push(...(await measureAt("MongoDB", records, mongoDb, plan)));
    }
    const sqlite = toContestant(await startService(file), sqliteDatabase(path));
    growth.push(...(await measureAt("SQLite", records, sqlite, plan)));
  }
  return growth;
}

async function measureAt(
  store: Store,
  records: number,
  ours: Contestant,
  { callers: numbers, effort: { seconds } }: Plan,
): Promise<Growth[]> {
  ours.created = records;
  await verify([ours]);
  const growth: Growth[] = [];
  for (const callers of numbers) {
    const measured = (work: Work) => measure(ours, work, callers, seconds);
    growth.push({
      store,
      records,
      callers,
      create: await measured(creates("grpc")),
      get: await measured(gets("grpc", ours.known)),
    });
  }
  await verify([ours]);
  await ours.server.stop();
  await ours.database?.close();
  return growth;
}
