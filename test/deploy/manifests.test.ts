import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { readVariables } from "../support/settings.ts";
import { hasTool } from "../support/tools.ts";

const deploy = resolve(import.meta.dirname, "../../deploy");
const text = (file: string) => readFileSync(join(deploy, file), "utf8");
const databaseUrl = "mongodb://db1/investors";

describe.skipIf(!hasTool("go", ["version"]))("the manifests", () => {
  let folder: string;

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "investor-records-"));
    const built = spawnSync("go", ["build", "-o", join(folder, "read"), "."], {
      cwd: join(import.meta.dirname, "manifests"),
      encoding: "utf8",
    });
    expect(built.stderr.replaceAll(/^go: downloading .*\n/gm, "")).toBe("");
  }, 600_000);

  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** What those who the manifest is for read in it. */
  const read = (kind: "compose" | "kubernetes", file: string) => {
    const { stdout, stderr } = spawnSync(join(folder, "read"), [kind, file], { encoding: "utf8" });
    if (stderr !== "") throw new Error(stderr);
    return stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
  };

  it("of Kubernetes have settings that the service takes, and time to drain", () => {
    const objects = read("kubernetes", join(deploy, "kubernetes.yaml"));
    const { spec } = objects.find(({ kind }) => kind === "Deployment");
    const { data } = objects.find(({ kind }) => kind === "ConfigMap");
    const { terminationGracePeriodSeconds: grace, containers } = spec.template.spec;
    const [{ ports, readinessProbe, livenessProbe }] = containers;
    const environment = { HOST: "0.0.0.0", DATABASE_URL: databaseUrl, ...data };
    const { tls, authentication, listen, drain } = readVariables(environment);
    expect(tls).toBeDefined();
    expect(authentication).toBeDefined();
    expect(ports.map((each: { containerPort: number }) => each.containerPort)).toEqual([
      listen.grpcPort,
      listen.httpPort,
    ]);
    expect(grace * 1_000).toBeGreaterThanOrEqual(drain.delayMs + drain.timeoutMs + 5_000);
    const { periodSeconds, failureThreshold } = readinessProbe;
    expect(drain.delayMs).toBeGreaterThan(periodSeconds * failureThreshold * 1_000);
    for (const { httpGet } of [readinessProbe, livenessProbe]) {
      expect(httpGet).toMatchObject({ scheme: "HTTPS", port: "https" });
    }
    const budget = objects.find(({ kind }) => kind === "PodDisruptionBudget");
    expect(budget.spec.minAvailable).toBeLessThan(spec.replicas);
    for (const each of objects.filter(({ kind }) => kind === "Service")) {
      expect(each.spec.selector).toEqual(spec.template.metadata.labels);
    }
    expect(budget.spec.selector.matchLabels).toEqual(spec.template.metadata.labels);
  });

  it("of Compose have settings that the service takes, and time to drain", () => {
    const [{ services }] = read("compose", join(deploy, "compose.yaml"));
    const { environment, stop_grace_period: grace, ports } = services["investor-records"];
    const config = readVariables({ HOST: "0.0.0.0", ...environment });
    expect(config.databaseUrl).toContain("replicaSet=rs0");
    expect(grace).toBe("30s");
    expect(config.drain.delayMs + config.drain.timeoutMs).toBeLessThan(30_000);
    for (const port of ports) expect(port.host_ip).toBe("127.0.0.1");
  });

  it.each([
    ["kubernetes", "kubernetes.yaml", "readOnlyRootFilesystem"],
    ["compose", "compose.yaml", "stop_grace_period"],
  ] as const)("of %s are refused with a field that is not known", (kind, file, field) => {
    const changed = join(temporaryFolder(), file);
    writeFileSync(changed, text(file).replace(field, `${field}s`));
    expect(() => read(kind, changed)).toThrow(`${field}s`);
  });
});

const canVerify = spawnSync("systemd-analyze", ["--version"]).error === undefined;
if (!canVerify) console.warn("SKIPPED: the test of the systemd unit, which needs systemd-analyze");

describe.skipIf(!canVerify)("the systemd unit", () => {
  const verify = (unit: string) => {
    const file = join(temporaryFolder(), "investor-records.service");
    const root = resolve(deploy, "..");
    writeFileSync(file, unit.replaceAll("/opt/investor-records", root));
    const { status, stderr } = spawnSync("systemd-analyze", ["verify", file], { encoding: "utf8" });
    return { status, stderr };
  };

  it("is accepted, has settings that the service takes, and time to drain", () => {
    const unit = text("investor-records.service");
    // It ends with 0 whatever it complains of.
    expect(verify(unit)).toEqual({ status: 0, stderr: "" });
    const environment = Object.fromEntries(
      Array.from(unit.matchAll(/^Environment=(\w+)=(.*)$/gm), ([, name, value]) => [name, value]),
    );
    const { drain, databaseUrl } = readVariables(environment);
    expect(databaseUrl).toBe("sqlite:///var/lib/investor-records/investors.db");
    const [, seconds] = /^TimeoutStopSec=(\d+)s$/m.exec(unit) ?? [];
    expect(drain.delayMs + drain.timeoutMs + 5_000).toBeLessThanOrEqual(Number(seconds) * 1_000);
  });

  it("is refused with a key that is not known", () => {
    const unit = text("investor-records.service").replace("ProtectHome", "ProtectHomes");
    expect(verify(unit).stderr).toContain("ProtectHomes");
  });
});
