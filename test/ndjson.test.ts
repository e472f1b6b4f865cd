import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { maxTextLength } from "../src/investor/investor.ts";
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
  it.each<[string, string | Buffer]>([
    [
      "id must be a UUID; city must be a string; age is not a member of an investor; zipCode is required; country must be two or three lower-case letters (a-z)",
      lineOf({ id: 7, age: "5", city: 5, country: "GB", zipCode: undefined }),
    ],
    // Would move the cursor, or not be seen.
    ['"\\u001b[2J\\n" is not a member of an investor', lineOf({ "\u001b[2J\n": "5" })],
    ['"\\ufeffcity" is not a member of an investor', lineOf({ "\ufeffcity": "5" })],
    ["lastName must not contain unpaired surrogates", lineOf({ lastName: "Secret \ud800" })],
    ["id or requestId is required", lineOf({ id: undefined })],
    ["id or requestId is required", lineOf({ id: undefined, requestId: "" })],
    ["requestId must not be given beside id", lineOf({ requestId })],
    ["requestId must be a UUID, neither nil nor max", lineOf({ id: undefined, requestId: "17" })],
    ["requestId must be a string", lineOf({ id: undefined, requestId: 17 })],
    ["repeats the member city", lineOf().replace("{", '{"city":"x",')],
    [`is not valid JSON at column ${lineOf().length}`, lineOf().slice(0, -1)],
    // A byte order mark in the middle of the file.
    ["is not valid JSON", `\ufeff${lineOf()}`],
    ["is not UTF-8", invalidBytes],
    ["is longer than 65536 bytes", lineOf({ city: "" }).padEnd(65_537)],
    ["is longer than 65536 bytes", lineOf({ lastName: "x".repeat(10_000_000) })],
  ])("is named and left out, and the others are stored, if it %s", async (why, line) => {
    const [first, second, last] = [lineOf(), lineOf(), lineOf()];
    const content = [`${first}\n${second}\n\r\n`, line, `\n${last}\n`];
    const { code, told, stored } = await importFile(
      Buffer.concat(content.map((each) => Buffer.from(each))),
    );
    expect(told).toBe(
      `error: line 4: ${why}\nerror: left out 1 record; copied 3 records, and found 0 already there\n`,
    );
    expect(code).toBe(1);
    const ids = [first, second, last].map((each) => JSON.parse(each ?? "").id);
    expect(stored.map(({ id }) => id)).toEqual(ids.toSorted());
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
    const texts = [
      '"\\/',
      "\u2028\u2029",
      "💶".repeat(maxTextLength),
      "é e\u0301",
      "</script>",
      " ",
    ];
    for (const text of texts) await store.insert(anInvestor({ lastName: text, state: text }));
    const stored = await store.list({ limit: 100 });
    await store.close();
    expect((await copyHere(["sqlite:a.db", "a.ndjson"], { folder })).code).toBe(0);
    const again = await importFile(readFileSync(join(folder, "a.ndjson")));
    expect(again.stored).toEqual(stored);
  });

  it("is not imported alone if it is none", async () => {
    expect(await importFile("x\n".repeat(2))).toEqual({
      code: 1,
      told: expect.stringMatching(
        /^error: line 1: is not valid JSON\nerror: line 2: .*\nerror: cannot read a.ndjson: it holds no records; left out 2 records; copied 0 records,/,
      ),
      stored: [],
    });
  });
});
