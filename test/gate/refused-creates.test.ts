import { expect, it } from "vitest";
import { runSql } from "../support/copying.ts";
import { failureOf } from "../support/errors.ts";
import { findAll } from "../support/markdown.ts";
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
  cause: RegExp;
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
  const lines = (text: string) => findAll(RegExp(`^(.*${text}.*)$`, "gm"), service.output());
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

it("SQLite that refuses creates for good is noticed, and that it is over", async () => {
  const service = await startService();
  const change = (sql: string) => () => runSql(fileOf(service), sql);
  const trigger = (action: string) =>
    change(`CREATE TRIGGER no BEFORE INSERT ON investors BEGIN SELECT ${action}; END`);
  const drop = change("DROP TRIGGER no");
  const hide = change("ALTER TABLE investors RENAME TO kept");
  const show = change("ALTER TABLE kept RENAME TO investors");
  for (const [cause, spoil, repair, isReady] of [
    [/: no more$/, trigger("RAISE(ABORT, 'no more')"), drop, true],
    [/: no way$/, trigger("RAISE(ROLLBACK, 'no way')"), drop, true],
    [/a trigger leaves the record out$/, trigger("RAISE(IGNORE)"), drop, true],
    [/no such table: /, hide, show, false],
  ] as const) {
    await expectNoticed(service, { cause, spoil, repair, isReady });
  }
  await expectStored(service, 8);
});

it("MongoDB that refuses creates is noticed, and that it is over", needsMongo(), async () => {
  const name = "investors";
  const { root, db, urlOf } = await startWithUsers();
  const resource = { db: name, collection: name };
  const toRole = (...actions: string[]) => ({ privileges: [{ resource, actions }] });
  await db.command({ createRole: "own", roles: [], ...toRole("find", "insert") });
  await db.command({ createUser: "service", pwd: "secret", roles: ["own"] });
  const service = await startService({ DATABASE_URL: urlOf("service") });
  const fail = failCommands(root);
  const block = (global: boolean) => root.db("admin").command({ setUserWriteBlockMode: 1, global });
  const validate = (validator: object) => db.command({ collMod: name, validator });
  const permit = (...actions: string[]) => db.command({ updateRole: "own", ...toRole(...actions) });
  const invalid = { approved: true };
  for (const [cause, spoil, repair] of [
    [/failCommand/, () => fail("alwaysOn", { errorCode: 8_000 }), () => fail("off")],
    [/failCommand/, () => fail("alwaysOn", { errorCode: 14_031 }), () => fail("off")],
    [/^User writes blocked \(371\)$/, () => block(true), () => block(false)],
    [/^Document failed validation \(121\)$/, () => validate(invalid), () => validate({})],
    [/does not authorize this/, () => permit("find"), () => permit("find", "insert")],
  ] as const) {
    await expectNoticed(service, { cause, spoil, repair });
  }
  await expectStored(service, 10);

  // One that is gone is made again.
  const client = grpcClient(service);
  await db.collection(name).drop();
  await client.createInvestor(aCreate());
  await expectStored(service, 1);

  // What is unknown stays open, with its cause.
  await fail("alwaysOn", { errorCode: 9_999 });
  const open = await failureOf(client.createInvestor(aCreate(), { timeoutMs: 20_000 }));
  expect(open.reason).toBe("OUTCOME_UNKNOWN");
  await expect.poll(service.output).toMatch(/"OUTCOME_UNKNOWN".*"cause":"[^"]*error 9999/);
});
