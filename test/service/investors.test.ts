import { toBinary } from "@bufbuild/protobuf";
import { v1, v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import {
  CreateInvestorRequestSchema,
  ListInvestorsResponseSchema,
} from "../../gen/investor/v1/investor_pb.js";
import { deriveId } from "../../src/investor/ids.ts";
import { textFields } from "../../src/investor/investor.ts";
import { failureOf } from "../support/errors.ts";
import { pagesOf } from "../support/pages.ts";
import { aCreate, largest } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";
import { grpcClient, storeWrong } from "../support/service.ts";
import { acceptedChanges, refusedChanges } from "./rules.ts";

const start = async () => grpcClient(await startInProcess());

const nameOf = (key: keyof typeof CreateInvestorRequestSchema.field) =>
  CreateInvestorRequestSchema.field[key].name;

/** The names of the fields by which a call breaks rules. */
async function wrongFieldsOf(call: Promise<unknown>): Promise<string[]> {
  const { code, reason, violations } = await failureOf(call);
  expect([code, reason]).toEqual(["InvalidArgument", "INVALID_FIELDS"]);
  return Object.keys(violations);
}

describe("create", () => {
  it("replies with the record and an id that ascends with time", async () => {
    const client = await start();
    const request = aCreate();
    const first = await client.createInvestor(request);
    expect(first).toMatchObject(request);
    expect(await client.getInvestor({ id: first.id })).toEqual(first);
    const ids = [first.id];
    while (ids.length < 100) ids.push((await client.createInvestor(request)).id);
    const pattern = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
    for (const id of ids) expect(id).toMatch(pattern);
    expect(new Set(ids).size).toBe(ids.length);
    const times = ids.map((id) => id.slice(0, 13));
    expect(times).toEqual(times.toSorted());
  });

  it("names the missing fields that it requires, and stores nothing", async () => {
    const client = await start();
    const { violations, message } = await failureOf(client.createInvestor({}));
    const code = "must be two or three lower-case letters (a-z)";
    expect(violations).toEqual({ type: "is required", country: code, language: code });
    expect(message).toBe("type is required; also invalid: country, language");
    expect((await client.listInvestors({})).investors).toEqual([]);
  });

  it("takes text that is missing as empty, and an empty request id as none", async () => {
    const client = await start();
    const request = { type: 2, lastName: "Example Capital", country: "us", language: "en" };
    const empty = Object.fromEntries(textFields.map((field) => [field, ""]));
    const first = await client.createInvestor(request);
    expect(first).toMatchObject({ ...empty, ...request });
    const second = await client.createInvestor({ ...empty, ...request, requestId: "" });
    expect(second).toEqual({ ...first, id: second.id });
    expect(second.id).not.toBe(first.id);
  });

  it("refuses what breaks a rule, names the field and stores nothing", async () => {
    const client = await start();
    for (const [field, change] of refusedChanges) {
      const wrong = await wrongFieldsOf(client.createInvestor(aCreate(change)));
      expect(wrong, JSON.stringify(change)).toEqual([nameOf(field)]);
    }
    expect((await client.listInvestors({})).investors).toEqual([]);
  });

  it("names all that is wrong at once, in the order of the fields", async () => {
    const client = await start();
    const wrong = Object.assign({}, ...refusedChanges.map(([, change]) => change));
    const fields = (["type", ...textFields, "requestId"] as const).filter((key) => key in wrong);
    const named = await wrongFieldsOf(client.createInvestor(aCreate(wrong)));
    expect(named).toEqual(fields.map(nameOf));
  });

  it("keeps text exactly as it was sent, up to the most code points", async () => {
    const client = await start();
    for (const change of acceptedChanges) {
      const { requestId: _, ...content } = change;
      const { id } = await client.createInvestor(aCreate(change));
      expect(await client.getInvestor({ id })).toMatchObject(content);
    }
    expect((await client.listInvestors({})).investors).toHaveLength(acceptedChanges.length);
  });
});

describe("a request id", () => {
  it("replies to a replay with the first record, in any case of its letters", async () => {
    const client = await start();
    const requestId = v4();
    const first = await client.createInvestor(aCreate({ firstName: "Ada", requestId }));
    const again = aCreate({ firstName: "Ada", requestId: requestId.toUpperCase() });
    const storm = Array.from({ length: 800 }, () => client.createInvestor(again));
    for (const each of await Promise.all(storm)) expect(each).toEqual(first);
    expect((await client.listInvestors({})).investors).toHaveLength(1);
  });

  it("refuses other content, whichever field differs", async () => {
    const client = await start();
    const requestId = v4();
    const request = aCreate({ requestId });
    const first = await client.createInvestor(request);
    const changes = [{ type: 2 }, ...textFields.map((field) => ({ [field]: "zz" }))];
    for (const change of changes) {
      const failure = await failureOf(client.createInvestor({ ...request, ...change }));
      expect(failure).toMatchObject({ code: "AlreadyExists", reason: "REQUEST_ID_REUSED" });
    }
    expect((await client.listInvestors({})).investors).toEqual([first]);
  });

  it("gives its time to the id if it is of version 7, and none otherwise", async () => {
    const client = await start();
    // A clock may have been set back since the first call.
    for (const msecs of [Date.now(), Date.now() + 2 * 60 * 60 * 1_000, 2 ** 48 - 1]) {
      const request = aCreate({ requestId: v7({ msecs }) });
      const { id } = await client.createInvestor(request);
      expect(id.slice(0, 15)).toBe(request.requestId?.slice(0, 15));
      expect(id).not.toBe(request.requestId);
      expect((await client.createInvestor(request)).id).toBe(id);
    }
    for (const other of [v1(), v4()]) {
      const { id } = await client.createInvestor(aCreate({ requestId: other }));
      expect(id).toMatch(/^.{14}8.{4}[89ab]/);
      expect(id.slice(0, 8)).not.toBe(other.slice(0, 8));
    }
  });
});

describe("get", () => {
  it("takes an id in any case, and refuses an empty one", async () => {
    const client = await start();
    const investor = await client.createInvestor(aCreate());
    expect(await client.getInvestor({ id: investor.id.toUpperCase() })).toEqual(investor);
    const { violations } = await failureOf(client.getInvestor({ id: "" }));
    expect(violations).toEqual({ id: "is required" });
  });

  it("finds nothing under an id that names no record, and repeats only a UUID", async () => {
    const client = await start();
    const unknown = v7();
    const others = ["x", "'; DROP TABLE investors", "x".repeat(60_000), `${unknown} `];
    for (const id of [unknown, ...others]) {
      const failure = await failureOf(client.getInvestor({ id }));
      expect(failure).toMatchObject({ code: "NotFound", reason: "INVESTOR_NOT_FOUND" });
      expect(failure.metadata).toEqual(id === unknown ? { id } : {});
    }
  });
});

describe("list", () => {
  it("has all records once, by id, in pages of any size, which is 100 unless it is given", async () => {
    const client = await start();
    const creates = Array.from({ length: 257 }, () => client.createInvestor(aCreate()));
    const ids = (await Promise.all(creates)).map(({ id }) => id);
    for (const pageSize of [0, 1, 256, 257]) {
      const pages = await Array.fromAsync(pagesOf(client, pageSize));
      expect(pages).toHaveLength(Math.ceil(ids.length / (pageSize || 100)));
      const listed = pages.flatMap(({ investors }) => investors.map(({ id }) => id));
      expect(listed).toEqual(ids.toSorted());
    }
  });

  it("takes a page size above 1,000 as 1,000, and ends a page before it exceeds 1 MiB", async () => {
    const client = await start();
    const small = Array.from({ length: 1_001 }, () => client.createInvestor(aCreate()));
    await Promise.all(small);
    const page = await client.listInvestors({ pageSize: 2_147_483_647 });
    expect(page.investors).toHaveLength(1_000);

    await Promise.all(Array.from({ length: 300 }, () => client.createInvestor(aCreate(largest))));
    let count = 0;
    for await (const next of pagesOf(client, 1_000)) {
      const size = toBinary(ListInvestorsResponseSchema, next).length;
      expect(size).toBeLessThanOrEqual(1024 * 1024);
      if (next.nextPageToken !== "" && count > 1_000) expect(size).toBeGreaterThan(1_000_000);
      count += next.investors.length;
    }
    expect(count).toBe(1_301);
  });

  it("refuses a negative size and a token that is not its own, together", async () => {
    const client = await start();
    const wrong = await wrongFieldsOf(client.listInvestors({ pageSize: -1, pageToken: "x" }));
    expect(wrong).toEqual(["page_size", "page_token"]);
  });

  it("refuses a token that was changed", async () => {
    const client = await start();
    for (let i = 0; i < 2; i += 1) await client.createInvestor(aCreate());
    const { nextPageToken: token } = await client.listInvestors({ pageSize: 1 });
    const changed = [token.slice(1), `B${token.slice(1)}`, `${token.slice(0, -1)}B`];
    changed.push(`${token}=`, `${token} `, `${token}AAAA`, token.replace(/.$/, "+"));
    for (const pageToken of changed) {
      expect(await wrongFieldsOf(client.listInvestors({ pageToken }))).toEqual(["page_token"]);
    }
  });
});

describe("a record of a type that another program wrote", () => {
  it("fails what reads it, and nothing else", async () => {
    const service = await startInProcess();
    const client = grpcClient(service);
    const { id } = await client.createInvestor(aCreate());
    const request = aCreate({ requestId: v7() });
    const wrong = storeWrong(service, deriveId("", String(request.requestId)));
    const calls = [
      client.getInvestor({ id: wrong }),
      client.listInvestors({}),
      client.createInvestor(request),
    ];
    for (const failure of await Promise.all(calls.map(failureOf))) {
      expect(failure.code).toBe("Internal");
    }
    expect(await client.getInvestor({ id })).toMatchObject({ id });
  });
});
