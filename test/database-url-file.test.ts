import { execFileSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { temporaryFolder } from "./support/folder.ts";
import { startInProcess } from "./support/server.ts";
import { ask } from "./support/service.ts";
import { needs } from "./support/tools.ts";

const start = (file: string) => startInProcess({ "--database-url-file": file });

describe("a file with the database URL", () => {
  it.each([
    ["is missing", undefined, " cannot be read (ENOENT)"],
    ["is empty", "\n", ": its URL must be sqlite:PATH"],
    [
      "has another line",
      "sqlite:a.db\nmongodb://user:s3cret@db\n",
      ": its URL must be sqlite:PATH",
    ],
    ["has a wrong option", "mongodb://user:s3cret@db/?a=b", " is not a MongoDB connection string"],
  ])("is refused if it %s, and nothing of it is repeated", async (_, text, fault) => {
    const file = join(temporaryFolder(), "url");
    if (text !== undefined) writeFileSync(file, text);
    const { name, message } = await start(file).catch((error) => error);
    expect(["ConfigError", "DatabaseUrlError"]).toContain(name);
    expect(message).toContain(`--database-url-file ${file}${fault}`);
    expect(message).not.toContain("s3cret");
  });

  it("is read once, at the start, where it can be a FIFO", needs("Linux"), async () => {
    const folder = temporaryFolder();
    const fifo = join(folder, "fifo");
    execFileSync("mkfifo", [fifo]);
    const [{ reload, ...server }] = await Promise.all([
      start(fifo),
      writeFile(fifo, `  sqlite:${folder}/one.db\r\n`),
    ]);
    expect(await reload()).toEqual({ reloaded: [], errors: [] });
    expect((await ask(server, "/readyz")).status).toBe(200);
    expect(existsSync(`${folder}/one.db`)).toBe(true);
  });
});
