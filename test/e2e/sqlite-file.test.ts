import { DatabaseSync } from "node:sqlite";
import { expect, it } from "vitest";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";

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
