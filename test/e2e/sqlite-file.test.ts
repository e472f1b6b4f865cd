import { once } from "node:events";
import { renameSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { expect, it } from "vitest";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService, waitFor } from "../support/service.ts";

it("the SQLite file has a STRICT table WITHOUT ROWID, ids of 16 bytes and a write-ahead log", async () => {
  const service = await startService();
  const { id } = await grpcClient(service).createInvestor(aCreate());
  const db = new DatabaseSync(`${service.folder}/data/investors.db`, { readOnly: true });
  const row = (sql: string) => ({ ...db.prepare(sql).get() });
  try {
    expect(row("SELECT strict, wr FROM pragma_table_list WHERE name = 'investors'")).toEqual({
      strict: 1,
      wr: 1,
    });
    expect(row("PRAGMA journal_mode")).toEqual({ journal_mode: "wal" });
    expect(row("SELECT typeof(id) AS type, hex(id) AS hex FROM investors")).toEqual({
      type: "blob",
      hex: id.replaceAll("-", "").toUpperCase(),
    });
  } finally {
    db.close();
  }
});

/** Creates so many records, one after the other. */
async function create(service: Service, count: number): Promise<void> {
  const client = grpcClient(service);
  for (let i = 0; i < count; i += 1) await client.createInvestor(aCreate());
}

async function countRecords(service: Service): Promise<number> {
  return ((await (await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`)).json()) as [])
    .length;
}

it("a service whose file was moved reads and writes nothing of the service that has its path now", async () => {
  const folder = temporaryFolder();
  const env = { DATABASE_URL: "sqlite:investors.db" };
  const first = await startService(env, folder);
  const { id } = await grpcClient(first).createInvestor(aCreate());
  first.child.kill("SIGTERM");
  await once(first.child, "exit");
  const old = await startService(env, folder);
  renameSync(`${folder}/investors.db`, `${folder}/moved.db`);
  await waitFor(
    async () => (await fetch(`http://127.0.0.1:${old.httpPort}/readyz`)).status === 503,
  );
  const service = await startService(env, folder);
  // While it reads, nothing is brought from the log into the file.
  const reader = new DatabaseSync(`${folder}/investors.db`, { readOnly: true });
  reader.exec("BEGIN; SELECT count(*) FROM investors");
  await create(service, 1_100);
  const unavailable = { reason: "STORE_UNAVAILABLE" };
  expect(await failureOf(grpcClient(old).getInvestor({ id }))).toMatchObject(unavailable);
  expect(await failureOf(grpcClient(old).listInvestors({}))).toMatchObject(unavailable);
  reader.close();
  await failureOf(grpcClient(old).createInvestor(aCreate()));
  expect(await old.exited).toBe(1);
  await create(service, 10);
  service.child.kill("SIGKILL");
  await once(service.child, "exit");
  expect(await countRecords(await startService(env, folder))).toBe(1_110);
}, 180_000);
