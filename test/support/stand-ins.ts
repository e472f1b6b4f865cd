// Stands in for docker, kubectl and systemctl, as far as the pages use them, on a machine that is a
// folder: node stand-ins.ts TOOL ARGUMENT… It runs what images, pods and units name, with their
// volumes and paths in that folder, and refuses options and names that it does not know.
import { spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type ParseArgsConfig, parseArgs } from "node:util";

const machine = process.env.MACHINE ?? "";
const clone = join(machine, "opt/investor-records");
const serve = ["node", "dist/bin.js", "serve"];

/** What is to be run, and where. */
interface Program {
  argv: string[];
  env: Record<string, string>;
  cwd: string;
  /** The folders of its volumes, by the paths that it sees. */
  volumes: Record<string, string>;
}

interface State {
  /** The processes of what runs, by its name. */
  pids: Record<string, number>;
  containers: Record<string, Program>;
  jobs: string[];
}

const stateFile = join(machine, "state.json");
const state: State = existsSync(stateFile)
  ? JSON.parse(readFileSync(stateFile, "utf8"))
  : { pids: {}, containers: {}, jobs: [] };

function fail(message: string): never {
  throw new Error(message);
}

/** The value, which has to be there. */
function find<T>(values: Record<string, T>, name: string, kind: string): T {
  return values[name] ?? fail(`no such ${kind}: ${name}`);
}

/** Text with the paths of the machine. */
const onMachine = (text: string) =>
  text.replaceAll(/(?<![\w.])\/(?=(etc|mnt|opt|var)\/)/g, `${machine}/`);

const text = { type: "string" } as const;
const texts = { type: "string", multiple: true } as const;
const flag = { type: "boolean" } as const;

/** Takes apart arguments; refuses options that are not among these. */
function parse<T extends NonNullable<ParseArgsConfig["options"]>>(args: string[], options: T) {
  return parseArgs({ args, options, allowPositionals: true });
}

/** How a program is run on the machine that the folder is. */
function resolveProgram({ argv, env, cwd, volumes }: Program) {
  const inVolumes = (text: string) =>
    Object.entries(volumes).reduce(
      (all, [path, folder]) => all.replaceAll(new RegExp(`(?<![\\w.])${path}(?!\\w)`, "g"), folder),
      text,
    );
  const [program, ...args] = argv.map(inVolumes);
  const own = Object.entries(env).map(([name, value]) => [name, inVolumes(value)]);
  const ports = { HOST: "127.0.0.1", PORT: "0" };
  return {
    program: program === "node" ? process.execPath : (program ?? fail("nothing to run")),
    args,
    options: { cwd, env: { PATH: process.env.PATH, ...Object.fromEntries(own), ...ports } },
  };
}

function runToEnd(what: Program): void {
  const { program, args, options } = resolveProgram(what);
  const { status, error } = spawnSync(program, args, { ...options, stdio: "inherit" });
  if (status !== 0) fail(`${what.argv.join(" ")} ended with ${error ?? status}`);
}

/** Whether a process runs; one that has ended is a zombie while nobody has asked for its status. */
function isRunning(pid: number | undefined): boolean {
  return pid !== undefined && existsSync(`/proc/${pid}/exe`);
}

/** Starts a service, unless it runs, and waits until it serves. */
async function start(name: string, what: Program): Promise<void> {
  if (isRunning(state.pids[name])) return;
  const { program, args, options } = resolveProgram(what);
  const log = join(machine, `${name}.log`);
  const output = openSync(log, "w");
  const child = spawn(program, args, {
    ...options,
    detached: true,
    stdio: ["ignore", output, output],
  });
  child.unref();
  while (!/"serving /.test(readFileSync(log, "utf8"))) {
    if (child.exitCode !== null) fail(`${name} ended: ${readFileSync(log, "utf8")}`);
    await delay(10);
  }
  state.pids[name] = child.pid ?? fail("not started");
}

async function stop(name: string): Promise<void> {
  const pid = state.pids[name];
  if (pid === undefined || !isRunning(pid)) return;
  process.kill(pid, "SIGTERM");
  while (isRunning(pid)) await delay(10);
}

/** The settings of a section of a unit, as systemd reads them. */
function readUnit(unit: string) {
  const file = join(machine, "etc/systemd/system", unit);
  if (!existsSync(file)) fail(`Unit ${unit} not found`);
  const text = onMachine(readFileSync(file, "utf8")).replaceAll("\\\n", "");
  const all = (key: string) =>
    Array.from(text.matchAll(new RegExp(`^${key}=(.*)$`, "gm")), ([, value = ""]) => value);
  return { all, one: (key: string) => all(key).at(-1) ?? "" };
}

async function startUnit(unit: string): Promise<void> {
  const { all, one } = readUnit(unit);
  if (unit.endsWith(".timer")) return void readUnit(unit.replace(".timer", ".service"));
  const env = all("Environment").map((each) => /^(\w+)=(.*)$/.exec(each)?.slice(1) ?? fail(each));
  const toProgram = (line: string): Program => ({
    argv: ["sh", "-c", `exec ${line.replaceAll("%%", "%")}`],
    env: Object.fromEntries(env),
    cwd: one("WorkingDirectory"),
    volumes: {},
  });
  if (one("Type") !== "oneshot") return start(unit, toProgram(one("ExecStart")));
  for (const line of [...all("ExecStart"), ...all("ExecStartPost")]) runToEnd(toProgram(line));
}

async function systemctl([command = "", ...args]: string[]): Promise<void> {
  const { values, positionals } = parse(args, command === "enable" ? { now: flag } : {});
  for (const name of positionals) {
    const unit = name.includes(".") ? name : `${name}.service`;
    readUnit(unit);
    if (command === "stop") await stop(unit);
    if (command === "start" || values.now) await startUnit(unit);
  }
  if (!/^(daemon-reload|edit|enable|start|stop)$/.test(command)) fail(`${command}?`);
}

/** A folder with what the last stage of the Dockerfile puts beside the build. */
function buildImage(tag: string): void {
  const text = readFileSync(join(clone, "Dockerfile"), "utf8");
  const context = readFileSync(join(clone, ".dockerignore"), "utf8");
  const [, copied = ""] = /^COPY (LICENSE .*) \.\/$/m.exec(text) ?? [];
  const app = join(machine, "images", tag);
  mkdirSync(app, { recursive: true });
  for (const file of [...copied.split(" "), "package.json", "node_modules", "gen", "dist"]) {
    const isBuilt = ["node_modules", "dist"].includes(file);
    if (!isBuilt && !context.includes(`\n!${file}\n`)) fail(`${file} is not in the context`);
    const path = join(app, basename(file));
    if (existsSync(path)) unlinkSync(path);
    symlinkSync(join(clone, file), path);
  }
}

/** The folder of a volume. */
function makeVolume(name: string): string {
  const folder = join(machine, "volumes", name);
  mkdirSync(folder, { recursive: true });
  return folder;
}

async function docker([command = "", ...args]: string[]): Promise<void> {
  const { containers } = state;
  if (command === "build") {
    const tag = { ...text, short: "t" } as const;
    const { values, positionals } = parse(args, { tag, "build-arg": text });
    return positionals.join() === "." ? buildImage(values.tag ?? fail("-t?")) : fail("context?");
  }
  if (command === "run") {
    const { values, positionals } = parse(args, {
      ...{ init: flag, rm: flag, name: text, "stop-timeout": text, entrypoint: text },
      detach: { ...flag, short: "d" },
      publish: { ...text, short: "p" },
      env: { ...texts, short: "e" },
      volume: { ...texts, short: "v" },
      "volumes-from": text,
    });
    const [image = "", ...own] = positionals;
    const cwd = join(machine, "images", image);
    if (!existsSync(cwd)) fail(`Unable to find image '${image}' locally`);
    const from = values["volumes-from"];
    const volumes = from ? { ...find(containers, from, "container").volumes } : {};
    for (const each of values.volume ?? []) {
      const [volume = "", path = ""] = each.split(":");
      volumes[path] = makeVolume(volume);
    }
    const [, variables = ""] =
      /^ENV (.*)$/m.exec(readFileSync(join(clone, "Dockerfile"), "utf8")) ?? [];
    const env = [...variables.split(" "), ...(values.env ?? [])].map((each) => each.split("="));
    const entrypoint = values.entrypoint ? [values.entrypoint] : ["node", "dist/bin.js"];
    const what = { argv: [...entrypoint, ...own], env: Object.fromEntries(env), cwd, volumes };
    if (values.rm) return runToEnd(what);
    const { name = "" } = values;
    if (containers[name]) fail(`Conflict. The container name "/${name}" is already in use`);
    containers[name] = what;
    return start(name, what);
  }
  const [name = "", ...argv] = args;
  const container = find(containers, name, "container");
  if (command === "start") return start(name, container);
  if (command === "stop") return stop(name);
  if (command === "exec") {
    if (!isRunning(state.pids[name])) fail(`container ${name} is not running`);
    return runToEnd({ ...container, argv });
  }
  if (command !== "rm") fail(`unknown command: ${command}`);
  if (isRunning(state.pids[name])) fail(`container ${name} is running`);
  delete containers[name];
}

/** What a pod runs, with each claim in a folder. */
function podProgram(spec: {
  volumes?: { name: string; persistentVolumeClaim: { claimName: string } }[];
  containers: {
    command?: string[];
    env: { name: string; value?: string }[];
    volumeMounts: { name: string; mountPath: string }[];
  }[];
}): Program {
  const [container] = spec.containers;
  if (container === undefined) return fail("no container");
  buildImage("of-the-pods");
  const claims = Object.fromEntries(
    (spec.volumes ?? []).map((each) => [each.name, each.persistentVolumeClaim?.claimName]),
  );
  const volumes = container.volumeMounts.map(({ name, mountPath }) => [
    mountPath,
    makeVolume(claims[name] ?? `${name}-investor-records-0`),
  ]);
  const env = Object.fromEntries(container.env.map(({ name, value = "" }) => [name, value]));
  const argv = (container.command ?? serve).map((each) =>
    each.replaceAll(/\$\((\w+)\)/g, (all, name) => env[name] ?? all),
  );
  const cwd = join(machine, "images/of-the-pods");
  return { argv, env, cwd, volumes: Object.fromEntries(volumes) };
}

async function kubectl([command = "", ...args]: string[]): Promise<void> {
  const objects = JSON.parse(readFileSync(join(machine, "objects.json"), "utf8"));
  const findObject = (kind: string, name = "") =>
    objects.find(
      (each: (typeof objects)[0]) =>
        each.kind.toLowerCase() === kind && each.metadata.name === name,
    ) ?? fail(`${kind} "${name}" not found`);
  const options = { from: text, for: text, timeout: text, replicas: text };
  const { values, positionals } = parse(args, options);
  if (command === "create") {
    const [kind = "", name = ""] = positionals;
    if (kind !== "job" || !/^[a-z][a-z0-9-]{0,62}$/.test(name)) fail(`${positionals}?`);
    if (state.jobs.includes(name)) fail(`jobs.batch "${name}" already exists`);
    const [of = "", source] = (values.from ?? "").split("/");
    const { spec } = findObject(of, source);
    const pod = spec.jobTemplate.spec.template.spec;
    const needsOther = pod.affinity?.podAffinity !== undefined;
    if (needsOther && !isRunning(state.pids["investor-records-0"])) fail("it cannot be scheduled");
    runToEnd(podProgram(pod));
    state.jobs.push(name);
  } else if (command === "wait") {
    const [kind = "", name = ""] = positionals.join().split("/");
    if (!/^\d+[mh]$/.test(values.timeout ?? "")) fail("how long?");
    if (kind === "pod" && values.for === "delete") {
      if (isRunning(state.pids[name])) fail(`timed out: ${name}`);
    } else if (kind !== "job" || values.for !== "condition=complete" || !state.jobs.includes(name))
      fail(`timed out: ${kind} ${name}`);
  } else if (command === "scale") {
    const [kind = "", name] = positionals;
    const { spec } = findObject(kind, name);
    if (values.replicas === "0") return stop(`${name}-0`);
    const { volumeMounts, env } = spec.template.spec.containers[0];
    const mounts = volumeMounts.filter((each: { name: string }) => each.name === "data");
    await start(`${name}-0`, podProgram({ containers: [{ env, volumeMounts: mounts }] }));
  } else fail(`unknown command: ${command}`);
}

const [tool = "", ...args] = process.argv.slice(2);
try {
  await find({ docker, kubectl, systemctl } as Record<string, typeof docker>, tool, "tool")(args);
} catch (error) {
  console.error(`${tool}: ${(error as Error).message}`);
  process.exitCode = 1;
} finally {
  writeFileSync(stateFile, JSON.stringify(state));
}
