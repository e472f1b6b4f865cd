import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { beforeAll, describe, expect, it } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { root } from "../support/clone.ts";
import { sharedFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import {
  anyPort,
  grpcClient,
  metric,
  runGroup,
  untilWritten,
  waitFor,
} from "../support/service.ts";
import { needs } from "../support/tools.ts";

const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/** What gcr.io/distroless/cc-debian13 is made of, and nothing that it lacks. */
const packages = [
  ...["base-files", "ca-certificates", "gcc-14-base", "libc6", "libgcc-s1", "libgomp1"],
  ...["libstdc++6", "tzdata"],
];

describe("the image", needs("buildah", "packages of Debian"), () => {
  const folder = sharedFolder();
  const revision = "4fd0b1d2c3a4958677889900aabbccddeeff0011";
  let container: string;
  let config: { Entrypoint: string[]; Labels: Record<string, string>; HealthCheck: string[] };

  const buildahArguments = [
    ...["--root", join(folder, "storage"), "--runroot", join(folder, "run")],
    ...["--storage-driver", "vfs"],
  ];
  const buildah = (...args: string[]) => output("buildah", ...buildahArguments, ...args).trim();

  beforeAll(() => {
    // Packages come from where the npm of this machine has them.
    const configured = (name: string) => output("npm", "config", "get", name);
    const lines = ["registry", "cafile"].map((name) => `${name}=${configured(name)}`);
    const known = lines.filter((line) => !line.endsWith("=null"));
    writeFileSync(join(folder, "npmrc"), [...known, "prefer-offline=true", ""].join("\n"));
    const npm = resolve(realpathSync(output("sh", "-c", "command -v npm")), "../..");
    const volumes = [
      ...["/lib:/lib:ro", "/lib64:/lib64:ro", "/usr/bin:/usr/bin:ro", "/usr/bin:/bin:ro"],
      ...[`${dirname(process.execPath)}:/node:ro`, `${npm}:/npm:ro`],
      `${configured("cache")}:/root/.npm`,
      ...[`${join(folder, "npmrc")}:/root/.npmrc:ro`, "/etc/ssl/certs:/etc/ssl/certs:ro"],
    ].flatMap((volume) => ["--volume", volume]);
    const build = ["build", "--quiet", "--isolation", "chroot", "--format", "docker", ...volumes];
    const base = [
      "FROM scratch",
      "ENV PATH=/usr/local/bin:/node:/bin HOME=/root",
      "WORKDIR /usr/local/bin",
      "RUN ln -s /npm/bin/npm-cli.js npm",
      "WORKDIR /tmp",
    ];
    writeFileSync(join(folder, "Dockerfile"), base.join("\n"));
    buildah(...build, "--tag", "builder", folder);
    unpackDebian(join(folder, "debian"));
    writeFileSync(join(folder, "debian/Dockerfile"), "FROM scratch\nCOPY root /\n");
    buildah(...build, "--tag", "base", join(folder, "debian"));
    const bases = { BUILD_IMAGE: "localhost/builder", BASE_IMAGE: "localhost/base" };
    const args = Object.entries({ REVISION: revision, ...bases }).map((each) => each.join("="));
    buildah(...build, "--tag", "image", ...args.flatMap((each) => ["--build-arg", each]), ".");
    container = buildah("from", "image");
    const { OCIv1, Docker } = JSON.parse(buildah("inspect", "--type", "image", "image"));
    config = { ...OCIv1.config, HealthCheck: Docker.config.Healthcheck.Test };
  });

  /** Runs a program in the container as its configuration says. */
  function run(env: Record<string, string>, program: string[]) {
    const settings = Object.entries(env).flatMap(([name, value]) => ["--env", `${name}=${value}`]);
    const args = ["run", "--isolation", "chroot", ...settings, container, "--", ...program];
    const running = runGroup("buildah", [...buildahArguments, ...args], {});
    // The rest is what buildah says of the status.
    const rest = /^(subprocess exited|Error: exit status).*\n/gm;
    return { ...running, told: () => running.output().replaceAll(rest, "") };
  }

  async function start(env: Record<string, string> = {}) {
    const settings = { ...anyPort, ALLOW_INSECURE: "true", ...env };
    const running = run(settings, config.Entrypoint);
    await untilWritten(running, "serving");
    const [, pid, port] = /"pid":(\d+).*:\/\/\[::\]:(\d+)/.exec(running.told()) ?? [];
    expect(port, running.told()).toBeDefined();
    return {
      ...{ port: Number(port), pid: Number(pid) },
      async stop() {
        process.kill(Number(pid), "SIGTERM");
        await waitFor(async () => !existsSync(`/proc/${pid}`));
        return running.exited;
      },
    };
  }

  /** The status of the health check. */
  const check = (env: Record<string, string>) => run(env, config.HealthCheck.slice(1)).exited;

  it("serves as a user without rights, and keeps its records when it is started again", async () => {
    const first = await start();
    expect(readFileSync(`/proc/${first.pid}/status`, "utf8")).toMatch(
      /^Uid:\t(10001\t?){4}\nGid:\t(10001\t?){4}$/m,
    );
    const labels = `{version="${version}",revision="${revision}",node="${process.versions.node}"}`;
    expect(await metric(first, "investor_records_build_info", labels)).toBe(1);
    expect(config.Labels["org.opencontainers.image.revision"]).toBe(revision);
    const asked = run({}, [...config.Entrypoint, "--version"]);
    expect(await asked.exited).toBe(0);
    expect(asked.told()).toBe(`${version} (${revision})\n`);
    const record = await grpcClient(first).createInvestor(aCreate());
    expect(await first.stop()).toBe(0);
    const second = await start();
    expect(await grpcClient(second).getInvestor({ id: record.id })).toEqual(record);
    expect(await second.stop()).toBe(0);
  });

  it("makes backups, and restores the newest, by what it has", async () => {
    const first = await start();
    const client = grpcClient(first);
    const { id } = await client.createInvestor(aCreate());
    const backup = run({}, ["node", "backup.js", "/backups"]);
    expect(await backup.exited, backup.told()).toBe(0);
    const later = await client.createInvestor(aCreate());
    expect(await first.stop()).toBe(0);
    for (let time = 0; time < 2; time++) {
      const restore = run({}, ["node", "restore.js", "/backups"]);
      expect(await restore.exited, restore.told()).toBe(0);
      const service = await start();
      const restored = grpcClient(service);
      expect((await restored.getInvestor({ id })).id).toBe(id);
      await expect(restored.getInvestor({ id: later.id })).rejects.toThrow("not_found");
      expect(await service.stop()).toBe(0);
    }
  });

  it("tells by its health check whether it is ready, with TLS too", async () => {
    const files = Object.values(await writeServerFiles(folder, await createAuthority()));
    buildah("copy", container, ...files, "/app");
    const tls = { TLS_CERT: "server.crt", TLS_KEY: "server.key" };
    for (const env of [{}, tls]) {
      const service = await start(env);
      const settings = { ...env, PORT: String(service.port) };
      expect(config.HealthCheck[0]).toBe("CMD");
      expect(await check(settings)).toBe(0);
      await service.stop();
      expect(await check(settings)).toBe(1);
    }
  });

  it("refuses to listen without TLS, which nobody allowed, in one line", async () => {
    const refused = run(anyPort, config.Entrypoint);
    expect(await refused.exited).toBe(2);
    expect(JSON.parse(refused.told()).msg).toMatch(/^HOST /);
  });
});

/** Unpacks the packages of the base, of Debian 13 by the mirror of this machine, into `root`. */
function unpackDebian(folder: string): void {
  for (const each of ["lists", "cache", "root"]) mkdirSync(join(folder, each), { recursive: true });
  const targets = output("apt-get", "indextargets", "--format", "$(REPO_URI)");
  const [mirror] = /^.*\/debian\/$/m.exec(targets) ?? [];
  const list = join(folder, "sources.list");
  writeFileSync(list, `deb ${mirror} trixie main\n`);
  const options = [
    ...[`Dir::Etc::sourcelist=${list}`, "Dir::Etc::sourceparts=-", `Dir::Cache=${folder}/cache`],
    ...[`Dir::State::lists=${folder}/lists`, "Acquire::Languages=none", "APT::Sandbox::User=root"],
    "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
  ].flatMap((option) => ["--option", option]);
  output("apt-get", ...options, "--quiet", "update");
  const download = ["--quiet", "download", ...packages];
  execFileSync("apt-get", [...options, ...download], { cwd: folder, stdio: "pipe" });
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".deb"))) {
    output("dpkg-deb", "--extract", join(folder, file), join(folder, "root"));
  }
}

function output(program: string, ...args: string[]): string {
  return execFileSync(program, args, { cwd: root, encoding: "utf8" }).trim();
}
