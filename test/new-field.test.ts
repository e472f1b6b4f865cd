// The next version, which has a field more, on what this one has left: CONTRIBUTING.md has the recipe.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, it } from "vitest";
import { copy, lineOf, makeSqlite, runSql, tableOf } from "./support/copying.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { buildWithField, create, list } from "./support/new-field.ts";
import { institution } from "./support/records.ts";
import { grpcClient, run, startService } from "./support/service.ts";

const parent = sharedFolder();
let newer = "";
beforeAll(() => {
  newer = buildWithField(parent);
});

it("an older file gets the field at the start, also beside an older service, which goes on", async () => {
  const folder = temporaryFolder();
  const [stored] = await makeSqlite(folder, "data/investors.db", 1);
  const older = await startService({}, folder);
  const service = await startService({}, folder, newer);
  const formerName = "Ada Byron";
  const { status, body } = await create(service, { ...institution, formerName });
  expect([status, body]).toMatchObject([200, { id: body.id, ...institution, formerName }]);
  // A caller that does not know the field.
  const without = await create(service, institution);
  expect(without).toMatchObject({ status: 200, body: { ...institution, formerName: "" } });
  const wrong = await create(service, { ...institution, formerName: "\n" });
  expect(wrong).toMatchObject({ status: 400, body: { errors: [{ pointer: "#/formerName" }] } });
  const { id } = await grpcClient(older).createInvestor({ ...institution, type: 2 });
  expect(await grpcClient(older).getInvestor({ id: String(body.id) })).toMatchObject({
    id: body.id,
    lastName: institution.lastName,
  });
  expect(await list(service)).toEqual([
    expect.objectContaining({ id: stored?.id, formerName: "" }),
    body,
    without.body,
    { ...without.body, id },
  ]);
});

it("an older export is imported, and an older file copied from, as without the field", async () => {
  const folder = temporaryFolder();
  await makeSqlite(folder, "older.db", 3);
  const before = readFileSync(join(folder, "older.db"));
  const { told } = await copy(["sqlite:older.db", "older.ndjson"], { folder });
  expect(told).toContain("copied 3 records");
  const lines = readFileSync(join(folder, "older.ndjson"), "utf8");
  writeFileSync(join(folder, "newer.ndjson"), lines + lineOf({ formerName: "Ada Byron" }));
  for (const [from, to] of [
    ["sqlite:older.db", "sqlite:copied.db"],
    ["newer.ndjson", "sqlite:imported.db"],
    ["sqlite:imported.db", "exported.ndjson"],
  ]) {
    const running = run(["copy", from ?? "", to ?? ""], {}, folder, newer);
    expect(await running.exited, running.output()).toBe(0);
  }
  expect(readFileSync(join(folder, "older.db"))).toEqual(before);
  expect(tableOf(folder, "copied.db").rows).toBe(3);
  const exported = readFileSync(join(folder, "exported.ndjson"), "utf8").trim().split("\n");
  const names = exported.map((line) => JSON.parse(line).formerName);
  expect(names).toEqual(["", "", "", "Ada Byron"]);
});

it.each([
  ["text", "FORMER_NAME TEXT", "'Ada Byron'", 0, ["Ada Byron", "", ""]],
  ["computed text", "former_name TEXT AS (middle_name || 'x')", "", 0, ["x", "x", "x"]],
  ["text against the rules", "former_name TEXT", "char(7)", 1, ["", ""]],
  ["another type", "former_name ANY", "7", 1, ["", ""]],
])(
  "a column of the field's name that somebody else has added, with %s, is copied from by its values",
  async (...row) => {
    const [, column, value, status, names] = row;
    const folder = temporaryFolder();
    const records = await makeSqlite(folder, "own.db", 3, { middleName: "" });
    const path = join(folder, "own.db");
    runSql(path, `ALTER TABLE investors ADD COLUMN ${column}`);
    const first = "WHERE id = (SELECT min(id) FROM investors)";
    if (value) runSql(path, `UPDATE investors SET former_name = ${value} ${first}`);
    const running = run(["copy", "sqlite:own.db", "out.ndjson"], {}, folder, newer);
    expect(await running.exited, running.output()).toBe(status);
    if (status === 1) expect(running.output()).toMatch(`record ${records[0]?.id}: formerName must`);
    const copied = readFileSync(join(folder, "out.ndjson"), "utf8").trim().split("\n");
    expect(copied.map((line) => JSON.parse(line).formerName)).toEqual(names);
  },
);
