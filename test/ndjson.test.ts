import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { copy, copyHere, lineOf, openSqlite } from "./support/copying.ts";
import { temporaryFolder } from "./support/folder.ts";
import { aCreate, anInvestor } from "./support/records.ts";
import { grpcClient, startService } from "./support/service.ts";

/** Imports a file into a new store, and shows what the store has then. */
async function importFile(content: string | Buffer) {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "a.ndjson"), content);
  const ended = await copyHere(["a.ndjson", "sqlite:b.db"], { folder });
  const store = await openSqlite(join(folder, "b.db"));
  const stored = await store.list({ limit: 1_000 });
  await store.close();
  return { ...ended, stored };
}

const requestId = v7();
const invalidBytes = Buffer.concat([Buffer.from('{"id":"'), Buffer.of(0xff)]);

describe("a line of NDJSON", () => {
  it.each<[string, string | Buffer, string]>([
    [
      "all sorts of mistakes",
      lineOf({ id: 7, age: "5", city: 5, country: "GB", zipCode: undefined }),
      "id must be a UUID; city must be a string; age is not a member of an investor; zipCode is required; country must be two or three lower-case letters (a-z)",
    ],
    [
      "a member that would move the cursor",
      lineOf({ "\u001b[2J\n": "5" }),
      '"\\u001b[2J\\n" is not a member of an investor',
    ],
    [
      "a member that begins with what cannot be seen",
      lineOf({ "\ufeffcity": "5" }),
      '"\\ufeffcity" is not a member of an investor',
    ],
    [
      "half a character",
      lineOf({ lastName: "Secret \ud800" }),
      "lastName must not contain unpaired surrogates",
    ],
    ["no id", lineOf({ id: undefined }), "id or requestId is required"],
    ["both ids", lineOf({ requestId }), "requestId must not be given beside id"],
    [
      "a request id that is none",
      lineOf({ id: undefined, requestId: "17" }),
      "requestId must be a UUID, neither nil nor max",
    ],
    [
      "a request id that is a number",
      lineOf({ id: undefined, requestId: 17 }),
      "requestId must be a string",
    ],
    ["a member twice", lineOf().replace("{", '{"city":"x",'), "repeats the member city"],
    ["an array", "[]", "is not a JSON object"],
    ["a cut end", lineOf().slice(0, -1), `is not valid JSON at column ${lineOf().length}`],
    ["a byte order mark in the middle", `\ufeff${lineOf()}`, "is not valid JSON"],
    ["bytes that are no UTF-8", invalidBytes, "is not UTF-8"],
    ["65,537 bytes", lineOf({ city: "" }).padEnd(65_537), "is longer than 65536 bytes"],
    ["10 MB", lineOf({ lastName: "x".repeat(10_000_000) }), "is longer than 65536 bytes"],
  ])("with %s ends the import, and what comes before it is stored", async (_, line, why) => {
    const before = [lineOf(), lineOf()];
    const content = [`${before.join("\n")}\n\r\n`, line, `\n${lineOf()}\n`];
    const { code, told, stored } = await importFile(
      Buffer.concat(content.map((each) => Buffer.from(each))),
    );
    expect(told).toBe(
      `error: cannot read a.ndjson: line 4: ${why}; copied 2 records, and found 0 already there; the same command goes on from there\n`,
    );
    expect(code).toBe(1);
    expect(stored.map(({ id }) => id)).toEqual(
      before.map((each) => JSON.parse(each).id).toSorted(),
    );
  });

  it("may end in CRLF, be empty, lack its end, follow a byte order mark or be 64 KiB", async () => {
    const ids = [v4(), v7(), "00000000-0000-0000-0000-000000000000", v7()];
    const [first, second, third, fourth] = ids.map((id) =>
      lineOf({ id: id.toUpperCase(), city: "" }),
    );
    const long = third?.padEnd(65_536);
    const { code, stored } = await importFile(
      `\ufeff${first}\r\n\r\n\n${second}\r\n${long}\n   ${fourth}`,
    );
    expect(code).toBe(0);
    expect(stored.map(({ id }) => id)).toEqual(ids.toSorted());
  });

  it("that comes twice is copied once, and a conflict with other content", async () => {
    const id = v7();
    const line = lineOf({ id });
    const { code, told, stored } = await importFile([line, line, lineOf({ id })].join("\n"));
    expect(told).toBe(
      `error: left 1 record as it is, which has other content under the same id (${id}); copied 1 record, and found 1 already there\n`,
    );
    expect(code).toBe(1);
    expect(stored).toMatchObject([{ id, firstName: JSON.parse(line).firstName }]);
  });

  it("may have a request id, whose create without credentials then meets the record", async () => {
    const folder = temporaryFolder();
    const request = aCreate({ requestId });
    const { type: _, ...texts } = request;
    const input = JSON.stringify({ ...texts, type: "individual" });
    expect((await copy(["-", "sqlite:data/investors.db"], { folder, input })).code).toBe(0);
    const client = grpcClient(await startService({}, folder));
    const created = await client.createInvestor(request);
    expect((await client.listInvestors({})).investors).toEqual([created]);
  });

  it("that was exported is imported as it was, whatever its text", async () => {
    const folder = temporaryFolder();
    const store = await openSqlite(join(folder, "a.db"));
    const texts = ['"\\/', "\u2028\u2029", "💶".repeat(256), "é e\u0301", "ß", "</script>", " "];
    for (const text of texts) await store.insert(anInvestor({ lastName: text, state: text }));
    const stored = await store.list({ limit: 100 });
    await store.close();
    expect((await copyHere(["sqlite:a.db", "a.ndjson"], { folder })).code).toBe(0);
    const again = await importFile(readFileSync(join(folder, "a.ndjson")));
    expect(again.stored).toEqual(stored);
  });
});
