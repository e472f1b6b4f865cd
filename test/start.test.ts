import { chmodSync, chownSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { expect, inject, it, onTestFinished } from "vitest";
import { makeSqlite } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import {
  anyPort,
  ask,
  end,
  grpcClient,
  lockDatabase,
  metric,
  preload,
  run,
  runGroup,
  startService,
  untilInFlight,
  waitFor,
} from "./support/service.ts";
import { freePort, http1, openWire } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

it("tells that it is alive and not ready while it opens the database, and then serves it", async () => {
  const folder = temporaryFolder();
  const [{ id } = anInvestor()] = await makeSqlite(folder, "data/investors.db", 1);
  const release = lockDatabase({ folder });
  // Nothing says which port the service would choose.
  const port = await freePort();
  run([], { PORT: String(port) }, folder);
  const get = (path: string) => ask({ port }, path);
  await waitFor(() => get("/healthz").catch(() => undefined));
  expect((await get("/healthz")).status).toBe(200);
  expect((await get("/readyz")).status).toBe(503);
  expect(await metric({ port }, "investor_records_ready")).toBe(0);
  const early = await failureOf(grpcClient({ port }).getInvestor({ id }));
  expect(early).toMatchObject({ code: "Unavailable", reason: "STORE_UNAVAILABLE" });
  for (const path of ["", `/${id}`]) expect((await get(`/v1/investors${path}`)).status).toBe(503);
  release();
  await waitFor(async () => (await get("/readyz")).ok);
  expect((await grpcClient({ port }).getInvestor({ id })).id).toBe(id);
});

it("ends by a SIGTERM that comes while it loads its modules", async () => {
  // The signal comes in the turn in which the service takes over from what has handled it so far.
  const script = `
    const { on } = process;
    process.on = function (name, listener) {
      if (name === "SIGTERM" && process.listenerCount(name) > 0) process.kill(process.pid, name);
      return on.call(this, name, listener);
    };`;
  const service = run([], { NODE_OPTIONS: preload(script) }, temporaryFolder());
  expect(await service.exited).not.toBe(0);
  expect(service.output()).toContain("ended by SIGTERM before it was ready");
});

it("starts beside a reader that stays, warns, and shows the WAL that grows", async () => {
  const folder = temporaryFolder();
  const first = await startService({}, folder);
  await grpcClient(first).createInvestor(aCreate());
  const reader = new DatabaseSync(join(folder, "data/investors.db"));
  onTestFinished(() => reader.close());
  reader.exec("BEGIN; SELECT count(*) FROM investors");
  await grpcClient(first).createInvestor(aCreate());
  await end(first, "SIGKILL");

  const service = await startService({ DRAIN_TIMEOUT: "0s" }, folder);
  expect(service.output()).toMatch(
    /"level":40.*investors.db cannot .* grows: another process reads/,
  );
  const client = grpcClient(service);
  expect((await client.listInvestors({})).investors).toHaveLength(2);
  const size = () => metric(service, "investor_records_sqlite_log_bytes");
  const before = await size();
  for (let i = 0; i < 20; i += 1) await client.createInvestor(aCreate());
  await waitFor(async () => (await size()) > before);
  const json = { "content-type": "application/json" };
  openWire(service.port, http1("POST", "/v1/investors", { ...json, "content-length": 9 }, "{"));
  await untilInFlight(service, 1);
  expect(await end(service)).toBe(1);
  const said = /"level":40.*stopped, and cut calls in flight, and left its latest records in/;
  expect(service.output()).toMatch(said);
});

it("says which new file it makes, without a warning, and of no other", async () => {
  const folder = temporaryFolder();
  const data = join(folder, "data");
  const saysNew = async () => {
    const service = await startService({}, folder);
    expect(await end(service)).toBe(0);
    expect(service.output()).not.toMatch(/"level":[4-6]0/);
    return service.output().includes("made data/investors.db, a new file without records");
  };
  expect(await saysNew()).toBe(true);
  expect(await saysNew()).toBe(false);
  rmSync(data, { recursive: true });
  mkdirSync(data);
  writeFileSync(join(data, "investors.db"), "", { mode: 0o600 });
  expect(await saysNew()).toBe(true);
});

const options = needs("access for all");
it.each([
  ["", "a clean end"],
  ["", "a kill"],
  ["-shm", "a clean end"],
  ["folder", "a clean end"],
])("says that it may not write its file%s, after %s", options, async (denied, ending) => {
  const folder = temporaryFolder();
  if (ending === "a clean end") await makeSqlite(folder, "data/investors.db", 1);
  else {
    const first = await startService({}, folder);
    await grpcClient(first).createInvestor(aCreate());
    await end(first, "SIGKILL");
  }
  const data = join(folder, "data");
  const file = join(data, "investors.db");
  if (denied === "-shm") writeFileSync(`${file}-shm`, Buffer.alloc(32_768));
  // Another user than root, who may do anything.
  const id = process.getuid?.() === 0 ? 65_534 : undefined;
  const paths = [folder, data, ...["", "-wal", "-shm"].map((suffix) => file + suffix)];
  for (const path of paths) if (id && existsSync(path)) chownSync(path, id, id);
  if (denied === "folder") chmodSync(data, 0o500);
  else chmodSync(file + denied, 0o400);
  const env = { ...process.env, ...anyPort };
  const user = id ? { uid: id, gid: id } : {};
  const args = [inject("bin")];
  const { output, exited } = runGroup(process.execPath, args, { cwd: folder, env, ...user });
  expect(await exited).toBe(1);
  expect(output()).toMatch(/cannot be opened or written: check rights/);
  chmodSync(data, 0o700);
});
