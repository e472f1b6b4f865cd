import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { clientsOf } from "./support/clients.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { connectTo, describeWithMongo } from "./support/mongodb.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask } from "./support/service.ts";
import { readSettings } from "./support/settings.ts";
import { needs } from "./support/tools.ts";

const start = (file: string) => startInProcess({ "--database-url-file": file });

describe("a file with the database URL", () => {
  it("does not go with the URL itself", () => {
    const flags = { "--database-url": "sqlite:a.db", "--database-url-file": "url" };
    expect(() => readSettings(flags)).toThrow(
      "only one of --database-url and --database-url-file may be set",
    );
  });

  it.each([
    ["is missing", undefined, "url cannot be read (ENOENT)"],
    ["is empty", "\n", "url: its URL must be sqlite:PATH"],
    ["has another line", "sqlite:a.db\nmongodb://user:s3cret@db\n", "url: its URL must be sqlite:"],
    ["has a wrong option", "mongodb://user:s3cret@db/?a=b", "url is not a MongoDB connection st"],
  ])("is refused if it %s, and nothing of it is repeated", async (_, text, fault) => {
    const file = join(temporaryFolder(), "url");
    if (text !== undefined) writeFileSync(file, text);
    const error = await start(file).catch(({ name, message }) => ({ name, message }));
    expect(error).toMatchObject({ name: "ConfigError", message: expect.stringContaining(fault) });
    expect(error).toMatchObject({ message: expect.stringMatching(/^--database-url-file \//) });
    expect(JSON.stringify(error)).not.toContain("s3cret");
  });

  it("can name an SQLite file, and no other while it runs", async () => {
    const folder = temporaryFolder();
    const file = temporaryFile(`  sqlite:${folder}/one.db\r\n`);
    const { reload, lines, ...server } = await start(file);
    const { gRPC } = clientsOf(server);
    const { id } = await gRPC.createInvestor(aCreate());
    expect((await reload()).errors).toEqual([]);
    writeFileSync(file, `sqlite:${folder}/two.db\n`);
    const { errors, reloaded } = await reload(true);
    expect(reloaded).toEqual([]);
    expect(errors.map(({ message }) => message)).toEqual([
      `--database-url-file ${file} cannot be used: it names another database`,
    ]);
    expect((await reload(true)).errors).toEqual([]);
    expect((await gRPC.getInvestor({ id })).id).toBe(id);
    expect(existsSync(`${folder}/two.db`)).toBe(false);
  });

  it("can name no SQLite file that processes would share", needs("Linux"), async () => {
    const flags = { "--database-url-file": temporaryFile("sqlite:a.db"), "--reuse-port": "true" };
    await expect(startInProcess(flags)).rejects.toThrow("--reuse-port needs MongoDB");
  });

  it("is read at the start only if it is a FIFO", needs("Linux"), async () => {
    const folder = temporaryFolder();
    const fifo = join(folder, "fifo");
    execFileSync("mkfifo", [fifo]);
    const [{ reload, ...server }] = await Promise.all([
      start(fifo),
      writeFile(fifo, `sqlite:${folder}/one.db`),
    ]);
    const { errors } = await reload();
    expect(errors.map(({ message }) => message)).toEqual([
      `${fifo} is not a regular file, and only those are read again`,
    ]);
    expect((await ask(server, "/readyz")).status).toBe(200);
  });
});

describeWithMongo("a file with the URL of a MongoDB", "standalone", (mongo) => {
  it("may change options, and not the database", async () => {
    const url = mongo.url();
    const file = temporaryFile(url);
    const { reload, ...server } = await start(file);
    const { gRPC } = clientsOf(server);
    const { id } = await gRPC.createInvestor(aCreate());
    for (const [changed, fault] of [
      [url.replace("127.0.0.1", "localhost"), "names another database"],
      [`${url.split("?")[0]}2`, "names another database"],
      ["sqlite:a.db", "names another database"],
      [`${url.split("?")[0]}?minPoolSize=7&no=1`, "unknown or unsupported option no"],
      [`${url.split("?")[0]}?minPoolSize=7`, undefined],
    ] as const) {
      writeFileSync(file, changed);
      const { errors, reloaded } = await reload();
      if (fault === undefined) expect([errors, reloaded]).toEqual([[], ["database URL"]]);
      else expect(String(errors)).toMatch(`--database-url-file ${file} cannot be used: `);
      expect(String(errors)).toContain(fault ?? "");
      expect((await gRPC.getInvestor({ id })).id).toBe(id);
    }
    const admin = (await connectTo(url)).db("admin");
    const own = [{ $currentOp: { idleConnections: true } }, { $match: { appName: /^investor/ } }];
    const connections = async () => (await admin.aggregate(own).toArray()).length;
    await expect.poll(connections).toBeGreaterThanOrEqual(7);
  });
});
