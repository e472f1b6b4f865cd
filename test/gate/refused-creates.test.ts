import { execFileSync } from "node:child_process";
import { DatabaseSync } from "node:sqlite";
import { describe, expect, it, onTestFinished } from "vitest";
import { runSql } from "../support/copying.ts";
import { failureOf } from "../support/errors.ts";
import { connectTo, needsMongo, startServer, startWithUsers } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import {
  ask,
  grpcClient,
  metric,
  type Service,
  startService,
  waitFor,
} from "../support/service.ts";
import { needs } from "../support/tools.ts";

/** A database that refuses creates for good, and what makes it take them again. */
interface Refusal {
  cause: unknown;
  spoil(): unknown;
  repair(): unknown;
  /** Whether records can be read meanwhile. */
  isReady?: boolean;
}

const writable = "investor_records_store_writable";
const isWritable = async (service: Service) => (await metric(service, writable)) === 1;
const refused = { code: "Unavailable", reason: "STORE_UNAVAILABLE" };

/** What "at once" takes on a busy machine, in milliseconds. */
const atOnceMs = 3_000;

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  const start = performance.now();
  const result = await work;
  expect(performance.now() - start).toBeLessThan(ms);
  return result;
}

/** Expects that a service notices this, goes on reading, and is as before once it is over. */
async function expectNoticed(
  service: Service,
  { cause, spoil, repair, isReady = true }: Refusal,
): Promise<void> {
  const client = grpcClient(service);
  const record = await client.createInvestor(aCreate());
  const before = service.output().length;
  const lines = (text: string) => service.output().slice(before).split(text).length - 1;
  await spoil();
  const failures = Array.from({ length: 20 }, () => failureOf(client.createInvestor(aCreate())));
  for (const failure of await within(atOnceMs, Promise.all(failures))) {
    expect(failure).toMatchObject(refused);
  }
  expect(await isWritable(service)).toBe(false);
  // A cause that was said within the last minute is not said again.
  const text = "the database refuses creates";
  const said = service
    .output()
    .split("\n")
    .filter((line) => line.includes(text));
  expect(said.map((line) => JSON.parse(line).cause)).toContainEqual(cause);
  if (isReady) expect(await client.getInvestor({ id: record.id })).toEqual(record);
  await waitFor(async () => (await ask(service, "/readyz")).ok === isReady);
  await repair();
  expect(await isWritable(service)).toBe(false);
  await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
  expect(await isWritable(service)).toBe(true);
  expect(lines("the database refuses creates")).toBeLessThan(2);
  expect(lines("the database takes creates again")).toBe(lines("the database refuses creates"));
  await waitFor(async () => (await ask(service, "/readyz")).ok);
}

/** Expects that nothing but these is stored. */
async function expectStored(service: Service, count: number): Promise<void> {
  const { investors } = await grpcClient(service).listInvestors({ pageSize: 1_000 });
  expect(investors).toHaveLength(count);
}

describe("SQLite that refuses creates for good is noticed, and that it is over:", () => {
  it("triggers, a table that is renamed, one that is dropped", async () => {
    const service = await startService();
    const change = (sql: string) => () => runSql(`${service.folder}/data/investors.db`, sql);
    const trigger = (action: string) => ({
      spoil: change(`CREATE TRIGGER no BEFORE INSERT ON investors BEGIN SELECT ${action}; END`),
      repair: change("DROP TRIGGER no"),
    });
    await expectNoticed(service, {
      cause: expect.stringMatching(/: no more$/),
      ...trigger("RAISE(ABORT, 'no more')"),
    });
    await expectNoticed(service, {
      cause: expect.stringMatching(/: no way$/),
      ...trigger("RAISE(ROLLBACK, 'no way')"),
    });
    await expectNoticed(service, {
      cause: expect.stringMatching(/a trigger leaves the record out$/),
      ...trigger("RAISE(IGNORE)"),
    });
    await expectNoticed(service, {
      cause: expect.stringContaining("no such table: "),
      spoil: change("ALTER TABLE investors RENAME TO kept"),
      repair: change("ALTER TABLE kept RENAME TO investors"),
      isReady: false,
    });
    await expectStored(service, 8);
    const db = new DatabaseSync(`${service.folder}/data/investors.db`, { readOnly: true });
    const { sql } =
      db.prepare("SELECT sql FROM sqlite_schema WHERE name = 'investors'").get() ?? {};
    db.close();
    await expectNoticed(service, {
      cause: expect.stringContaining("no such table: "),
      spoil: change("DROP TABLE investors"),
      repair: change(String(sql)),
      isReady: false,
    });
    await expectStored(service, 1);
  });

  it("a WAL that may no longer be written", needs("chattr"), async () => {
    const service = await startService();
    const change = (flag: string) => () => {
      execFileSync("chattr", [flag, `${service.folder}/data/investors.db-wal`]);
    };
    onTestFinished(change("-i"));
    await expectNoticed(service, {
      cause: expect.stringContaining("SQLite 778: disk I/O error"),
      spoil: change("+i"),
      repair: change("-i"),
    });
    await expectStored(service, 2);
  });

  it("a trigger that refuses one record alone refuses no other", async () => {
    const service = await startService();
    runSql(
      `${service.folder}/data/investors.db`,
      `CREATE TRIGGER no BEFORE INSERT ON investors WHEN new.city = 'Nowhere'
        BEGIN SELECT RAISE(ABORT, 'no such city'); END`,
    );
    const client = grpcClient(service);
    const creates = Array.from({ length: 50 }, (_, i) =>
      client.createInvestor(aCreate(i % 5 === 2 ? { city: "Nowhere" } : {})),
    );
    const refusals = creates.filter((_, i) => i % 5 === 2).map(failureOf);
    for (const failure of await Promise.all(refusals)) expect(failure).toMatchObject(refused);
    await Promise.allSettled(creates);
    await expectStored(service, 40);
    expect(await isWritable(service)).toBe(true);
    expect(service.output()).not.toContain("the database refuses creates");
  });
});

/** Expects that a create, which an index rejects, fails at once and for good, and that the log names the index. */
async function expectRejected(service: Service, index: string): Promise<void> {
  const client = grpcClient(service);
  await client.createInvestor(aCreate({ lastName: "taken" }));
  const repeated = client.createInvestor(aCreate({ lastName: "taken" }));
  const failure = await within(atOnceMs, failureOf(repeated));
  expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
  await expect.poll(service.output).toMatch(`"traceId":"${failure.metadata?.id}"`);
  expect(service.output()).toContain(index);
  expect(service.output()).not.toContain("taken");
  expect(await isWritable(service)).toBe(true);
  await client.createInvestor(aCreate({ lastName: "free" }));
}

it("SQLite's index of an operator rejects one record for good", async () => {
  const service = await startService();
  const path = `${service.folder}/data/investors.db`;
  runSql(path, "CREATE UNIQUE INDEX own ON investors (last_name)");
  await expectRejected(service, "UNIQUE constraint failed: investors.last_name");
});

const name = "investors";

/** Starts a set with a user who may read and insert, and no more. */
async function startSet() {
  const { root, db, urlOf } = await startWithUsers();
  const resource = { db: name, collection: name };
  const privileges = [{ resource, actions: ["find", "insert"] }];
  await db.command({ createRole: "own", roles: [], privileges });
  await db.command({ createUser: "service", pwd: "secret", roles: ["own"] });
  return { root, db, url: urlOf("service") };
}

describe("MongoDB that refuses creates is noticed, and that it is over:", needsMongo(), () => {
  it("a set: quota, disk, writes that are blocked, validator, role", async () => {
    const { root, db, url } = await startSet();
    const service = await startService({ DATABASE_URL: url });
    const fail = (mode: string, errorCode = 1) => {
      const data = { failCommands: ["insert"], errorCode, appName: "investor-records" };
      return root.db("admin").command({ configureFailPoint: "failCommand", mode, data });
    };
    for (const code of [8_000, 14_031]) {
      await expectNoticed(service, {
        cause: expect.stringMatching(/failCommand/),
        spoil: () => fail("alwaysOn", code),
        repair: () => fail("off"),
      });
    }
    const block = (isOn: boolean) => () =>
      root.db("admin").command({ setUserWriteBlockMode: 1, global: isOn });
    await expectNoticed(service, {
      cause: expect.stringMatching(/^User writes blocked \(371\)$/),
      spoil: block(true),
      repair: block(false),
    });
    const validate = (validator: object) => () => db.command({ collMod: name, validator });
    await expectNoticed(service, {
      cause: expect.stringMatching(/^Document failed validation \(121\)$/),
      spoil: validate({ approved: true }),
      repair: validate({}),
    });
    await expectNoticed(service, {
      cause: expect.stringMatching(
        /^MongoDB does not authorize this: check the user in the URL and its roles$/,
      ),
      spoil: () =>
        db.command({
          updateRole: "own",
          privileges: [{ resource: { db: name, collection: name }, actions: ["find"] }],
        }),
      repair: () =>
        db.command({
          updateRole: "own",
          privileges: [{ resource: { db: name, collection: name }, actions: ["find", "insert"] }],
        }),
    });
    await expectStored(service, 10);

    // One that is gone is made again.
    const client = grpcClient(service);
    await db.collection(name).drop();
    await client.createInvestor(aCreate());
    await expectStored(service, 1);
    await db.collection(name).rename("away");
    await client.createInvestor(aCreate());
    await expectStored(service, 1);

    // What is unknown stays open, with its cause.
    await fail("alwaysOn", 9_999);
    const open = await failureOf(client.createInvestor(aCreate(), { timeoutMs: 20_000 }));
    expect(open.reason).toBe("OUTCOME_UNKNOWN");
    await expect.poll(service.output).toMatch(/"OUTCOME_UNKNOWN".*"cause":"[^"]*error 9999/);
    await fail("off");
  });

  it("an index of an operator, which rejects one record for good", async () => {
    const server = await startServer();
    const db = (await connectTo(server.getUri(name))).db();
    await db.collection(name).createIndex({ lastName: 1 }, { unique: true });
    const service = await startService({ DATABASE_URL: server.getUri(name) });
    await expectRejected(service, "the unique index of lastName rejects it");
  });

  it("a standalone server", async () => {
    const server = await startServer();
    const db = (await connectTo(server.getUri(name))).db();
    const service = await startService({ DATABASE_URL: server.getUri(name) });
    await grpcClient(service).createInvestor(aCreate());
    const validate = (validator: object) => () => db.command({ collMod: name, validator });
    await expectNoticed(service, {
      cause: expect.stringMatching(/^Document failed validation \(121\)$/),
      spoil: validate({ approved: true }),
      repair: validate({}),
    });
    await expectStored(service, 3);
  });
});
