import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { openNdjsonSource } from "../../src/copy/ndjson-source.ts";
import { deriveId } from "../../src/service/ids.ts";
import { temporaryFolder } from "../support/folder.ts";
import { aCreate, anInvestor } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";
import { copy, copyHere, lineOf, openSqlite } from "./copying.ts";

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
const marked = Buffer.concat([Buffer.of(0xef, 0xbb, 0xbf), Buffer.from(lineOf())]);

describe("a line of NDJSON", () => {
  it.each([
    [
      "a country in upper case",
      lineOf({ country: "GB" }),
      "country must be two or three lower-case letters (a-z)",
    ],
    [
      "two fields missing",
      lineOf({ firstName: undefined, zipCode: undefined }),
      "firstName is required; zipCode is required",
    ],
    ["a type that is none", lineOf({ type: "person" }), "type must be individual or institution"],
    ["a number", lineOf({ city: 5 }), "city must be a string"],
    ["a member twice", lineOf().replace("{", '{"city":"x",'), "repeats a member"],
    ["a member of its own", lineOf({ age: "5" }), "age is not a member of an investor"],
    [
      "a member by its name in the contract",
      lineOf({ firstName: undefined, first_name: "Ada" }),
      "first_name is not a member of an investor; firstName is required",
    ],
    [
      "a member that would move the cursor",
      lineOf({ "\u001b[2J\n": "5" }),
      '"\\u001b[2J\\n" is not a member of an investor',
    ],
    [
      "all sorts of mistakes",
      lineOf({ id: 7, age: "5", city: 5, country: "GB" }),
      "id must be a UUID; city must be a string; age is not a member of an investor; country must be two or three lower-case letters (a-z)",
    ],
    [
      "control characters",
      lineOf({ lastName: "a\u0000b" }),
      "lastName must not contain control characters",
    ],
    [
      "half a character",
      lineOf({ lastName: "\ud800" }),
      "lastName must not contain unpaired surrogates",
    ],
    [
      "long text",
      lineOf({ lastName: "x".repeat(257) }),
      "lastName must be at most 256 characters long",
    ],
    ["no id", lineOf({ id: undefined }), "id or requestId is required"],
    ["an id that is none", lineOf({ id: "17" }), "id must be a UUID"],
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
    ["an array", "[]", "is not a JSON object"],
    ["an end that was cut off", lineOf().slice(0, -20), "is not valid JSON"],
    [
      "bytes that are no UTF-8",
      Buffer.concat([Buffer.from('{"id":"'), Buffer.of(0xff)]),
      "is not UTF-8",
    ],
    ["10 MB", lineOf({ lastName: "x".repeat(10_000_000) }), "is longer than 65536 bytes"],
    ["a byte order mark in the middle", marked, "is not valid JSON"],
  ])("with %s ends the import, and what comes before it is stored", async (_, line, why) => {
    const before = [lineOf(), lineOf()];
    const content = [`${before.join("\n")}\n`, line, `\n${lineOf()}\n`];
    const { code, told, stored } = await importFile(
      Buffer.concat(content.map((each) => Buffer.from(each))),
    );
    expect(told).toBe(
      `error: cannot read a.ndjson: line 3: ${why}; copied 2 records, and found 0 already there; correct the line and repeat the command\n`,
    );
    expect(code).toBe(1);
    expect(stored.map(({ id }) => id)).toEqual(
      before.map((each) => JSON.parse(each).id).toSorted(),
    );
  });

  it("may end in CRLF, be empty, lack its end, or follow a byte order mark", async () => {
    const [first, second, third] = [lineOf(), lineOf(), lineOf()];
    const content = `\ufeff${first}\r\n\r\n\n${second}\r\n   ${third}`;
    const { code, stored } = await importFile(content);
    expect(code).toBe(0);
    expect(stored).toHaveLength(3);
    expect(stored.map(({ language }) => language)).toEqual(["en", "en", "en"]);
  });

  it("counts also if it is empty", async () => {
    const { told } = await importFile(`\n\r\n${lineOf()}\n\nx\n`);
    expect(told).toContain("line 5: is not valid JSON");
  });

  it("may have any UUID as its id, which is kept in lower case", async () => {
    const ids = [v4(), v7(), "00000000-0000-0000-0000-000000000000"].toSorted();
    const { code, stored } = await importFile(
      ids.map((id) => lineOf({ id: id.toUpperCase() })).join("\n"),
    );
    expect(code).toBe(0);
    expect(stored.map(({ id }) => id)).toEqual(ids);
  });

  it("that comes twice is copied once, and a conflict with other content", async () => {
    const id = v7();
    const line = lineOf({ id });
    const { code, told, stored } = await importFile([line, line, lineOf({ id })].join("\n"));
    expect(told).toBe(
      `error: conflicts with other content under the same ids, which stays: 1 (${id}); copied 1 record, and found 1 already there\n`,
    );
    expect(code).toBe(1);
    expect(stored).toMatchObject([{ id, firstName: JSON.parse(line).firstName }]);
  });

  it("shows no value of a record in an error", async () => {
    const { told } = await importFile(lineOf({ lastName: "Secret\u0000", country: "Secret" }));
    expect(told).toContain("country must");
    expect(told).not.toContain("Secret");
  });
});

describe("a request id in NDJSON", () => {
  it("gives the id of the empty principal", async () => {
    const line = lineOf({ id: undefined, requestId: requestId.toUpperCase() });
    const { code, stored } = await importFile(line);
    expect(code).toBe(0);
    expect(stored.map(({ id }) => id)).toEqual([deriveId("", requestId)]);
  });

  it("is that of a later create, which meets the record", async () => {
    const folder = temporaryFolder();
    const request = aCreate({ requestId });
    const { type: _, ...texts } = request;
    const input = JSON.stringify({ ...texts, type: "individual" });
    expect((await copy(["-", "sqlite:data/investors.db"], { folder, input })).code).toBe(0);
    const client = grpcClient(await startService({}, folder));
    const created = await client.createInvestor(request);
    expect((await client.listInvestors({})).investors).toEqual([created]);
  });
});

it("what was exported is imported as it was, whatever its text", async () => {
  const folder = temporaryFolder();
  const store = await openSqlite(join(folder, "a.db"));
  const texts = ['"\\/', "\u2028\u2029", "💶".repeat(256), "é e\u0301", "ß", "</script>", " "];
  for (const text of texts) await store.insert(anInvestor({ lastName: text, state: text }));
  const stored = await store.list({ limit: 100 });
  await store.close();
  expect((await copy(["sqlite:a.db", "a.ndjson"], { folder })).code).toBe(0);
  const again = await importFile(readFileSync(join(folder, "a.ndjson")));
  expect(again.stored).toEqual(stored);
});

it("a file whose copy is aborted before it is opened is not read", async () => {
  const path = join(temporaryFolder(), "a.ndjson");
  writeFileSync(path, lineOf());
  const source = await openNdjsonSource(path, AbortSignal.abort());
  await delay(50);
  await expect(source.batches[Symbol.asyncIterator]().next()).rejects.toThrow("abort");
});
