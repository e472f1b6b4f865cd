import { spawnSync } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { InvestorService } from "../gen/investor/v1/investor_pb.js";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";

it("the check of the contract fails on each change that breaks callers, and names it", () => {
  const folder = temporaryFolder();
  for (const name of ["package.json", "buf.yaml", "proto"]) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  const file = join(folder, "proto/investor/v1/investor.proto");
  let text = readFileSync(file, "utf8");
  const changes = [
    ["zip_code", "string zip_code = 10;", "string postcode = 10;"],
    ["city", "string city = 8;", "optional string city = 8;"],
    ["GetInvestor", /\n {2}rpc GetInvestor[^}]*\}\n/, "\n"],
    ["java_multiple_files", /option java_multiple_files.*\n/, ""],
  ] as const;
  for (const [, from, to] of changes) {
    expect(text).toMatch(from);
    text = text.replace(from, to);
  }
  writeFileSync(file, text);
  const args = ["run", "-s", "contract"];
  const { status, stdout } = spawnSync("npm", args, { cwd: folder, encoding: "utf8" });
  expect(status).not.toBe(0);
  for (const [name] of changes) expect(stdout).toContain(`"${name}"`);
});

it.each([
  ["investor_grpc_service_config.json", ["GetInvestor", "ListInvestors"]],
  ["investor_grpc_service_config_with_request_ids.json", undefined],
])("%s names the methods, and repeats those that it may", (name, repeated) => {
  const file = join(root, "proto/investor/v1", name);
  const { methodConfig, retryThrottling } = JSON.parse(readFileSync(file, "utf8"));
  const methods = InvestorService.methods.map((method) => method.name);
  const found = [];
  const policies = new Map<string, Record<string, unknown>>();
  for (const { name: names, timeout, waitForReady, retryPolicy } of methodConfig) {
    for (const { service, method } of names) {
      expect(service).toBe(InvestorService.typeName);
      const named = method === undefined ? methods : [method];
      found.push(...named);
      for (const each of retryPolicy ? named : []) policies.set(each, retryPolicy);
    }
    // The service itself gives up after ten seconds.
    expect([timeout, waitForReady]).toEqual(["30s", true]);
  }
  expect(found.toSorted()).toEqual(methods.toSorted());
  expect([...policies.keys()]).toEqual(repeated ?? methods);
  for (const policy of policies.values()) {
    // gRPC makes no more than five attempts.
    expect(policy).toMatchObject({ maxAttempts: 5, retryableStatusCodes: ["UNAVAILABLE"] });
  }
  expect(retryThrottling.maxTokens).toBeLessThanOrEqual(1_000);
  expect(retryThrottling.tokenRatio).toBeGreaterThan(0);
});
