import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { v4 } from "uuid";
import { describe, expect, it } from "vitest";
import { failureOf } from "../support/errors.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, startService } from "../support/service.ts";

const manual = readFileSync(new URL("../../docs/security.md", import.meta.url), "utf8");
const [, remove = "", report = ""] =
  /sqlite3 data\/investors\.db "([^"]*;)\s*([^";]*);"/.exec(manual) ?? [];

describe("a record that an operator removes", () => {
  it("is gone from replies and from the file, until its create is repeated", async () => {
    const service = await startService();
    const data = join(service.folder, "data");
    const client = grpcClient(service);
    const isOnDisk = (text: string) =>
      readdirSync(data).some((name) => readFileSync(join(data, name)).includes(text));
    const lastName = `Lovelace ${v4()}`;
    const request = aCreate({ lastName, requestId: v4() });
    const others = Array.from({ length: 200 }, () => client.createInvestor(aCreate()));
    const { id } = await client.createInvestor(request);
    await Promise.all(others);
    expect(isOnDisk(lastName)).toBe(true);

    const db = new DatabaseSync(join(data, "investors.db"), { timeout: 5_000 });
    db.exec(remove.replace(/x'\w+'/, `x'${id.replaceAll("-", "")}'`));
    expect({ ...db.prepare(report).get() }).toEqual({
      busy: 0,
      log: 0,
      checkpointed: 0,
    });
    db.close();

    expect((await failureOf(client.getInvestor({ id }))).reason).toBe("INVESTOR_NOT_FOUND");
    const { investors } = await client.listInvestors({ pageSize: 1_000 });
    expect(investors).toHaveLength(200);
    expect(isOnDisk(lastName)).toBe(false);
    expect((await client.createInvestor(request)).id).toBe(id);
    expect((await client.getInvestor({ id })).lastName).toBe(lastName);
  });
});
