import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v4 } from "uuid";
import { beforeAll, describe, expect, it } from "vitest";
import { root } from "../support/clone.ts";
import { lineOf, makeSqlite, rowsOf, runSql, startWriters, tableOf } from "../support/copying.ts";
import { sharedFolder, temporaryFolder } from "../support/folder.ts";
import { connectTo, describeWithMongo } from "../support/mongodb.ts";
import { buildWithField, changedFiles, create, list, runIn } from "../support/new-field.ts";
import { aCreate, institution, largest } from "../support/records.ts";
import { ask, end, grpcClient, run, startService, waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";
import { prepareDisks } from "./faults/failing-disk.ts";

const parent = sharedFolder();
let newer = "";
beforeAll(() => {
  newer = buildWithField(parent, ["test", "vitest.config.ts", "bench"]);
});

const formerName = "Ada Byron";

it("the recipe names the files that have to change, and is all that has to be done", () => {
  const text = readFileSync(join(root, "CONTRIBUTING.md"), "utf8");
  const [, recipe = ""] = /\*\*A field of the record\.\*\*(.*?)\n\*\*/s.exec(text) ?? [];
  for (const name of changedFiles) expect(recipe).toContain(name);
  runIn(parent, "tsc");
  const files = ["openapi", "service/investors", "contract", "investor-binary"].map(
    (name) => `test/${name}.test.ts`,
  );
  runIn(parent, "vitest", "run", "--project", "quick", ...files);
});

describe("an older SQLite file", () => {
  it("gets the field beside an older service that writes, and a reader with a snapshot", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "data/investors.db", 20_000);
    const older = await startService({}, folder);
    const writers = startWriters(grpcClient(older));
    await waitFor(() => writers.acknowledged.length > 100);
    using reader = new DatabaseSync(join(folder, "data/investors.db"), { readOnly: true });
    const rows = "SELECT count(*) AS rows FROM investors";
    reader.exec("BEGIN");
    const before = reader.prepare(rows).get();
    const service = await startService({}, folder, newer);
    const count = writers.acknowledged.length;
    await waitFor(() => writers.acknowledged.length > count + 100);
    expect(reader.prepare(rows).get()).toEqual(before);
    const headers = { "idempotency-key": v4() };
    const created = await create(service, { ...institution, formerName }, headers);
    expect(created).toMatchObject({ status: 200, body: { formerName } });
    const acknowledged = await writers.stop();
    // Each is killed, so that the next start has to match the file and its WAL.
    await Promise.all([end(older, "SIGKILL"), end(service, "SIGKILL")]);
    const again = await startService({}, folder, newer);
    const found = new Map((await list(again)).map((each) => [each.id, each.formerName]));
    expect(found.size).toBe(20_000 + acknowledged.length + 1);
    for (const { id } of acknowledged) expect(found.get(id)).toBe("");
    expect(found.get(created.body.id)).toBe(formerName);
    expect(await create(again, { ...institution, formerName }, headers)).toEqual(created);
  });

  describe("at any of whose system calls the start is killed", needs("cc"), () => {
    const createDisk = prepareDisks();

    it("has all records, and gets the field at the next start", async () => {
      const disk = createDisk();
      const { env } = disk;
      const source = temporaryFolder();
      await makeSqlite(source, "investors.db", 1_000);
      const path = join(disk.data, "investors.db");
      writeFileSync(join(disk.folder, "one.ndjson"), lineOf({ formerName }));
      const told: string[] = [];
      for (let call = 1; ; call += 1) {
        rmSync(disk.data, { recursive: true });
        mkdirSync(disk.data);
        copyFileSync(join(source, "investors.db"), path);
        disk.setRules(`any * ${call} kill`);
        const args = ["copy", "one.ndjson", `sqlite:${path}`];
        const killed = run(args, env, disk.folder, newer);
        const code = await killed.exited;
        told.push(killed.output().trim());
        const at = `call ${call}: ${told.at(-1)}`;
        if (code !== 0) expect(code, at).toBe("SIGKILL");
        disk.setRules("");
        const next = run(args, {}, disk.folder, newer);
        expect(await next.exited, `${at}\n${next.output()}`).toBe(0);
        expect(tableOf(disk.data, "investors.db").rows, at).toBe(1_001);
        using db = new DatabaseSync(path, { readOnly: true });
        const query = "SELECT count(*) AS rows FROM investors WHERE former_name = ?";
        expect(db.prepare(query).get(formerName), at).toEqual({ rows: 1 });
        if (code === 0) break;
      }
      console.log(told.join("\n"));
      expect(told.length).toBeGreaterThan(20);
    });
  });

  it("is copied as it is at each page, while a service adds the field", async () => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "data/investors.db", 3_000, largest);
    const copying = run(["copy", "sqlite:data/investors.db", "-"], {}, folder, newer);
    // Its output is not read, so that it stands still soon.
    copying.child.stdout?.pause();
    await waitFor(() => (copying.child.stdout?.readableLength ?? 0) > 0);
    const service = await startService({}, folder, newer);
    const { body } = await create(service, { ...institution, formerName });
    copying.child.stdout?.resume();
    expect(await copying.exited).toBe(0);
    const lines = copying.written.stdout.trim().split("\n");
    expect(lines).toHaveLength(3_001);
    expect(JSON.parse(lines.at(-1) ?? "")).toEqual(body);
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({ formerName: "" });
  });

  it.each<[why: string, spoil: (path: string) => void]>([
    [
      "it is damaged, or its disk cannot be read (SQLite 11: database disk image is malformed)",
      // The last page of the table, which is in the order of the ids.
      (path) => {
        const bytes = readFileSync(path);
        writeFileSync(path, bytes.fill(0xff, bytes.length - 4_096));
      },
    ],
    [
      "SQLite 1: duplicate column name: former_name",
      (path) => runSql(path, "ALTER TABLE investors ADD COLUMN former_name TEXT"),
    ],
  ])("that cannot get the field says what helps: %s", async (why, spoil) => {
    const folder = temporaryFolder();
    await makeSqlite(folder, "data/investors.db", 1_000);
    const path = join(folder, "data/investors.db");
    spoil(path);
    const before = readFileSync(path);
    const refused = run([], {}, folder, newer);
    expect(await refused.exited).toBe(1);
    expect(refused.output()).toContain(
      `it cannot get the column former_name: ${why}; copy it to a new`,
    );
    expect(readFileSync(path)).toEqual(before);
    const copying = run(["copy", "sqlite:data/investors.db", "sqlite:new.db"], {}, folder, newer);
    await copying.exited;
    expect(rowsOf(folder, "new.db")).toBeGreaterThan(500);
    const service = await startService({ DATABASE_URL: "sqlite:new.db" }, folder, newer);
    expect((await list(service)).every((each) => each.formerName === "")).toBe(true);
  });
});

describeWithMongo("MongoDB", "set of one", (mongo) => {
  it("an older collection has the field empty, and no other that is missing", async () => {
    const env = { DATABASE_URL: mongo.url() };
    const older = await startService(env);
    const service = await startService(env, temporaryFolder(), newer);
    const { id } = await grpcClient(older).createInvestor(aCreate());
    const { body } = await create(service, { ...institution, formerName });
    expect((await list(service)).map((each) => each.formerName)).toEqual(["", formerName]);
    const known = await grpcClient(older).getInvestor({ id: String(body.id) });
    expect(known).toMatchObject({ id: body.id, lastName: institution.lastName });

    const records = (await connectTo(env.DATABASE_URL)).db().collection("investors");
    await records.updateMany({ formerName: { $exists: false } }, { $unset: { city: "" } });
    expect((await ask(service, `/v1/investors/${id}`)).status).toBe(500);
    const folder = temporaryFolder();
    const copying = run(["copy", env.DATABASE_URL, "sqlite:copy.db"], {}, folder, newer);
    expect(await copying.exited).toBe(1);
    expect(copying.output()).toContain(`record ${id}: city is required`);
    expect(copying.output()).toContain("copied 1 record");
  });
});
