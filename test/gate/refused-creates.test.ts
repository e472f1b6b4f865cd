import { DatabaseSync } from "node:sqlite";
import { expect, it } from "vitest";
import { runSql } from "../support/copying.ts";
import { failureOf } from "../support/errors.ts";
import { failCommands, needsMongo, startWithUsers } from "../support/mongodb.ts";
import { aCreate } from "../support/records.ts";
import {
  ask,
  grpcClient,
  metric,
  type Service,
  startService,
  waitFor,
} from "../support/service.ts";

/** A database that refuses creates for good, and what makes it take them again. */
interface Refusal {
  cause: string | RegExp;
  spoil(): unknown;
  repair(): unknown;
  /** Whether records can be read meanwhile. */
  isReady?: boolean;
}

const writable = "investor_records_store_writable";
const isWritable = async (service: Service) => (await metric(service, writable)) === 1;

/** What "at once" takes on a busy machine, in milliseconds. */
const atOnceMs = 3_000;

/** Expects that a service notices this, goes on reading, and is as before once it is over. */
async function expectNoticed(
  service: Service,
  { cause, spoil, repair, isReady = true }: Refusal,
): Promise<void> {
  const client = grpcClient(service);
  const lines = (text: string) =>
    service
      .output()
      .split("\n")
      .filter((line) => line.includes(text));
  const refusals = () => lines("the database refuses creates");
  const before = refusals().length;
  const record = await client.createInvestor(aCreate());
  await spoil();
  const start = performance.now();
  const failures = Array.from({ length: 20 }, () => failureOf(client.createInvestor(aCreate())));
  for (const failure of await Promise.all(failures)) {
    expect(failure).toMatchObject({ code: "Unavailable", reason: "STORE_UNAVAILABLE" });
  }
  expect(performance.now() - start).toBeLessThan(atOnceMs);
  expect(await isWritable(service)).toBe(false);
  // A cause that was said within the last minute is not said again.
  const causes = refusals().map((line) => JSON.parse(line).cause);
  expect(causes).toContainEqual(expect.stringMatching(cause));
  if (isReady) expect(await client.getInvestor({ id: record.id })).toEqual(record);
  await waitFor(async () => (await ask(service, "/readyz")).ok === isReady);
  await repair();
  expect(await isWritable(service)).toBe(false);
  await waitFor(() => client.createInvestor(aCreate()).catch(() => undefined));
  expect(await isWritable(service)).toBe(true);
  expect(refusals().length).toBeLessThan(before + 2);
  expect(lines("the database takes creates again")).toHaveLength(refusals().length);
  await waitFor(async () => (await ask(service, "/readyz")).ok);
}

/** Expects that nothing but these is stored. */
async function expectStored(service: Service, count: number): Promise<void> {
  const { investors } = await grpcClient(service).listInvestors({ pageSize: 1_000 });
  expect(investors).toHaveLength(count);
}

const fileOf = ({ folder }: Service) => `${folder}/data/investors.db`;

it("SQLite that refuses creates for good is noticed, and that it is over: triggers, a table that is gone", async () => {
  const service = await startService();
  const change = (sql: string) => () => runSql(fileOf(service), sql);
  for (const [action, cause] of [
    ["RAISE(ABORT, 'no more')", /: no more$/],
    ["RAISE(ROLLBACK, 'no way')", /: no way$/],
    ["RAISE(IGNORE)", /a trigger leaves the record out$/],
  ] as const) {
    const spoil = `CREATE TRIGGER no BEFORE INSERT ON investors BEGIN SELECT ${action}; END`;
    const repair = change("DROP TRIGGER no");
    await expectNoticed(service, { cause, spoil: change(spoil), repair });
  }
  await expectNoticed(service, {
    cause: "no such table: ",
    spoil: change("ALTER TABLE investors RENAME TO kept"),
    repair: change("ALTER TABLE kept RENAME TO investors"),
    isReady: false,
  });
  await expectStored(service, 8);
  const db = new DatabaseSync(fileOf(service), { readOnly: true });
  const find = db.prepare("SELECT sql FROM sqlite_schema WHERE name = 'investors'");
  const table = String(find.get()?.sql);
  db.close();
  await expectNoticed(service, {
    cause: "no such table: ",
    spoil: change("DROP TABLE investors"),
    repair: change(table),
    isReady: false,
  });
  await expectStored(service, 1);
});

it("one record that an index of an operator rejects fails at once and for good, and the log names the index", async () => {
  const service = await startService();
  const client = grpcClient(service);
  runSql(fileOf(service), "CREATE UNIQUE INDEX own ON investors (last_name)");
  await client.createInvestor(aCreate({ lastName: "taken" }));
  const start = performance.now();
  const failure = await failureOf(client.createInvestor(aCreate({ lastName: "taken" })));
  expect(performance.now() - start).toBeLessThan(atOnceMs);
  expect(failure).toMatchObject({ code: "Internal", reason: "INTERNAL" });
  await expect.poll(service.output).toMatch(`"traceId":"${failure.metadata?.id}"`);
  expect(service.output()).toContain("UNIQUE constraint failed: investors.last_name");
  expect(service.output()).not.toContain("taken");
  expect(await isWritable(service)).toBe(true);
  await client.createInvestor(aCreate({ lastName: "free" }));
});

it(
  "MongoDB that refuses creates is noticed, and that it is over: quota, disk, writes that are blocked, validator, role",
  needsMongo(),
  async () => {
    const name = "investors";
    const { root, db, urlOf } = await startWithUsers();
    const resource = { db: name, collection: name };
    const toRole = (...actions: string[]) => ({ privileges: [{ resource, actions }] });
    await db.command({ createRole: "own", roles: [], ...toRole("find", "insert") });
    await db.command({ createUser: "service", pwd: "secret", roles: ["own"] });
    const service = await startService({ DATABASE_URL: urlOf("service") });
    const fail = failCommands(root);
    for (const errorCode of [8_000, 14_031]) {
      await expectNoticed(service, {
        cause: "failCommand",
        spoil: () => fail("alwaysOn", { errorCode }),
        repair: () => fail("off"),
      });
    }
    const block = (global: boolean) =>
      root.db("admin").command({ setUserWriteBlockMode: 1, global });
    await expectNoticed(service, {
      cause: /^User writes blocked \(371\)$/,
      spoil: () => block(true),
      repair: () => block(false),
    });
    const validate = (validator: object) => db.command({ collMod: name, validator });
    await expectNoticed(service, {
      cause: /^Document failed validation \(121\)$/,
      spoil: () => validate({ approved: true }),
      repair: () => validate({}),
    });
    await expectNoticed(service, {
      cause: /^MongoDB does not authorize this: check the user in the URL and its roles$/,
      spoil: () => db.command({ updateRole: "own", ...toRole("find") }),
      repair: () => db.command({ updateRole: "own", ...toRole("find", "insert") }),
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
    await fail("alwaysOn", { errorCode: 9_999 });
    const open = await failureOf(client.createInvestor(aCreate(), { timeoutMs: 20_000 }));
    expect(open.reason).toBe("OUTCOME_UNKNOWN");
    await expect.poll(service.output).toMatch(/"OUTCOME_UNKNOWN".*"cause":"[^"]*error 9999/);
    await fail("off");
  },
);
