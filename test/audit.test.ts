/** What an auditor learns from the log alone. */
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { readBlocks } from "./support/markdown.ts";
import { messages, paths, rawCall, rawConnection } from "./support/raw-grpc.ts";
import { aCreate } from "./support/records.ts";
import { ask, end, lockDatabase, readMetrics, startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** The questions of docs/security.md, with the commands that answer them. */
function readQuestions(): Record<string, string> {
  const [block] = readBlocks("docs/security.md").filter(({ test }) => test.includes("audit"));
  const questions = block?.text.matchAll(/^# (.*)\n(jq .*)$/gm) ?? [];
  return Object.fromEntries(Array.from(questions, ([, question, jq]) => [question, jq]));
}

describe("from the log alone, an auditor learns", needs("jq"), () => {
  it("who created, read, was refused, and what is missing, beside a stranger who floods", async () => {
    const tokens = "orders t0ken-of-the-orders\nreports t0ken-of-the-reports investors:read\n";
    const env = { AUTH_TOKENS_FILE: temporaryFile(tokens), LOG_CALLS: "true" };
    const service = await startService(env);
    const clientsBy = (name: string) =>
      clientsOf(service, { authorization: `Bearer t0ken-of-the-${name}` });
    const [orders, reports] = [clientsBy("orders"), clientsBy("reports")];
    const headers = { authorization: "Bearer t0ken-of-the-reports" };
    const session = rawConnection(service.port);
    const stranger = () => rawCall(session, paths.get, messages.empty, { authorization: "none" });
    const flooding = Promise.all(Array.from({ length: 500 }, stranger));

    const create = aCreate({ requestId: v7() });
    const release = lockDatabase(service);
    const leaving = new AbortController();
    const left = failureOf(orders.gRPC.createInvestor(create, { signal: leaving.signal }));
    const figures = () => readMetrics({ ...service, ...headers });
    await expect.poll(figures).toMatch(/_calls_in_flight 1$/m);
    leaving.abort();
    await left;
    await expect.poll(service.output).toContain('"code":"CANCELLED"');
    release();
    const { id } = await orders.gRPC.createInvestor(create);
    await orders.Connect.createInvestor(aCreate());
    await reports.Connect.getInvestor({ id });
    await failureOf(reports.gRPC.getInvestor({ id: v7() }));
    await reports["gRPC-Web"].listInvestors({ pageSize: 1 });
    expect(await (await ask(service, "/v1/investors", { headers })).json()).toHaveLength(2);
    await failureOf(reports.gRPC.createInvestor(aCreate()));
    await flooding;
    const sumOf = (text: string, pattern: RegExp) =>
      Array.from(text.matchAll(pattern), ([, n]) => Number(n ?? 1)).reduce((sum, n) => sum + n, 0);
    const logged = () => sumOf(service.output(), /"msg":"refused"/g);
    const unlogged = () => sumOf(service.output(), /"count":(\d+),"msg":"more/g);
    await expect.poll(() => logged() + unlogged()).toBe(500 + 1);
    const counted = /^investor_records_refusals_unlogged_total\S+ (\d+)$/gm;
    expect(sumOf(await figures(), counted)).toBe(unlogged());
    await end(service);

    const folder = temporaryFolder();
    const [time] = /"time":\d+/.exec(service.output()) ?? [""];
    // As if no midnight had passed, and as journalctl shows it.
    const log = service.output().replaceAll(/"time":\d+/g, time);
    const others = "Starting Investor Records...\n12\n";
    writeFileSync(join(folder, "service.log"), `${others}${log}${others}`);
    const DAY = new Date(Number(time.slice(7))).toISOString().slice(0, 10);
    const variables = { ...process.env, ID: id, CALLER: "token reports", DAY };
    const questions = readQuestions();
    const answer = (question: string) =>
      execFileSync("bash", ["-c", questions[question] ?? ""], { cwd: folder, env: variables })
        .toString()
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line))
        .toSorted((a, b) => `${a.transport} ${a.code}`.localeCompare(`${b.transport} ${b.code}`));
    const [first, second] = answer("Who created this record?");
    // Whether the first had stored it when it ended, its line need not say.
    expect(first).toMatchObject({ principal: "token orders", code: "CANCELLED" });
    expect(first.created ?? first.attempted).toBe(id);
    expect(second).toMatchObject({ principal: "token orders", code: "OK" });
    const caller = { principal: "token reports" };
    const got = { ...caller, read: id, transport: "connect" };
    const listed = [
      { ...caller, first: id, last: id, count: 1, transport: "grpc-web" },
      { ...caller, first: id, count: 2, transport: "rest" },
    ];
    expect(answer("Who may have read it?")).toMatchObject([got, ...listed]);
    const refused = { ...caller, reason: "SCOPE_MISSING", transport: "grpc" };
    const day = answer("What did this caller do on that day?");
    expect(day).toMatchObject([got, refused, ...listed]);
    const refusals = answer("Who was refused, and why?");
    expect(refusals).toContainEqual(expect.objectContaining(refused));
    expect(refusals).toContainEqual(expect.objectContaining({ reason: "CREDENTIALS_INVALID" }));
    expect(refusals).toHaveLength(logged());
    const missing = answer("Which lines are missing?");
    expect(missing.reduce((sum, { count }) => sum + count, 0)).toBe(unlogged());
  });
});
