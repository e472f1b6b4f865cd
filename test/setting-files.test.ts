/** Files that settings name. */
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createReload } from "../src/settings/reloaded-files.ts";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { startInProcess } from "./support/server.ts";

describe("a file that a setting names", () => {
  it("is named if it cannot be used, and nothing of it is repeated", async () => {
    const authority = await createAuthority();
    const { key } = await authority.sign("other");
    const damaged = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    const server = await writeServerFlags(temporaryFolder(), authority);
    for (const [flag, text, fault] of [
      ["--auth-tokens-file", "# nothing\n", " holds no token"],
      ["--auth-tokens-file", "a b123456789abcdef\nc d123456789abcdef x\n", ", line 2: "],
      ["--auth-tokens-file", "a tökén-tökén-tökén\n", ", line 1: "],
      ["--auth-tokens-file", "reports investors:read\n", ", line 1: investors:read is a scope"],
      ["--auth-tokens-file", "a 0123456789abcde\n", ", line 1: the token must have at least 16"],
      ["--auth-tokens-file", "0123456789abcde\n", ", line 1: the token must have at least 16"],
      ["--auth-tokens-file", "orders, 0123456789abcdef\n", ", line 1: "],
      ["--auth-tokens-file", "a 0123456789abcdef\n\nb 0123456789abcdef\n", ", line 3: "],
      ["--database-url-file", "\n", ": its URL must be sqlite:PATH"],
      [
        "--database-url-file",
        "sqlite:a.db\nmongodb://u:s3cret@db\n",
        ": its URL must be sqlite:PATH",
      ],
      ["--database-url-file", "mongodb://u:s3cret@db/?a=b", " is not a MongoDB connection string"],
      ["--tls-cert", "text", " is not a usable certificate in PEM (ERR_"],
      ["--tls-key", key, " is not the key of --tls-cert"],
      ["--tls-client-ca", "", " is not a certificate in PEM"],
      ["--tls-client-ca", key, " is not a certificate in PEM"],
      ["--tls-client-ca", authority.ca + damaged, " is not a certificate in PEM"],
    ] as const) {
      const file = temporaryFile(text);
      const starting = startInProcess({ ...server, [flag]: file });
      const { name, message } = await starting.catch((error) => error);
      expect(["ConfigError", "DatabaseUrlError"]).toContain(name);
      expect(message).toContain(`${flag} ${file}${fault}`);
      expect(message).not.toMatch(/s3cret|0123456789|tökén/);
    }
    for (const flag of ["--auth-tokens-file", "--database-url-file", "--tls-cert"]) {
      const start = startInProcess({ ...server, [flag]: "/none" });
      await expect(start).rejects.toThrow(`${flag} /none cannot be read (ENOENT)`);
    }
  });

  it("is said to be wrong once, and again when it was right meanwhile", async () => {
    const faults = ["wrong", "wrong", "", "wrong"];
    const read = async () => {
      const fault = faults.shift();
      if (fault) throw new Error(fault);
      return false;
    };
    const reload = createReload({ read });
    for (const count of [1, 0, 0, 1]) expect((await reload(true)).errors).toHaveLength(count);
  });

  it("can be a FIFO, which is read once", async () => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const flags = await writeServerFlags(folder, authority);
    const { "--tls-key": keyFile, "--tls-cert": certFile } = flags;
    const urlFile = join(folder, "url");
    const key = readFileSync(keyFile);
    rmSync(keyFile);
    execFileSync("mkfifo", [keyFile, urlFile]);
    const [server] = await Promise.all([
      startInProcess({ ...flags, "--database-url-file": urlFile }),
      writeFile(keyFile, key),
      writeFile(urlFile, `  sqlite:${folder}/one.db\r\n`),
    ]);
    writeFileSync(certFile, readFileSync(certFile, "utf8") + authority.ca);
    expect(await server.reload()).toEqual({ reloaded: ["certificates"], errors: [] });
    expect(existsSync(`${folder}/one.db`)).toBe(true);
  });
});
