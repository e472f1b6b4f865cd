// Stands in for docker, kubectl and systemctl, as far as the pages use them, on a machine that is a
// folder: node stand-ins.ts TOOL ARGUMENT… It runs what images, pods and units name, with their
// volumes and paths in that folder, and refuses options and names that it does not know.
import { spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type ParseArgsConfig, parseArgs } from "node:util";

const machine = process.env.MACHINE ?? "";
const clone = join(machine, "opt/investor-records");
const dockerfile = readFileSync(join(clone, "Dockerfile"), "utf8");

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
  const [program = "", ...args] = argv.map(inVolumes);
  const own = Object.entries(env).map(([name, value]) => [name, inVolumes(value)]);
  const ports = { HOST: "127.0.0.1", PORT: "0" };
  return {
    program: program === "node" ? process.execPath : program,
    args,
    options: { cwd, env: { PATH: process.env.PATH, ...Object.fromEntries(own), ...ports } },
  };
}

function runToEnd(what: Program): void {
  const { program, args, options } = resolveProgram(what);
  const { status, error } = spawnSync(program, args, { ...options, stdio: "inherit" });
  if (status !== 0) fail(`${what.argv.join(" ")} ended with ${error ?? status}`);
}

/** Whether something runs; what has ended is a zombie while nobody has asked for its status. */
const isRunning = (name: string) => existsSync(`/proc/${state.pids[name]}/exe`);

/** Starts a service, unless it runs, and waits until it serves. */
async function start(name: string, what: Program): Promise<void> {
  if (isRunning(name)) return;
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
  if (pid === undefined || !isRunning(name)) return;
  process.kill(pid, "SIGTERM");
  while (isRunning(name)) await delay(10);
}

/** Reads the settings of a unit as systemd does, with the paths of the machine: all values of a key. */
function readUnit(unit: string): (key: string) => string[] {
  const file = join(machine, "etc/systemd/system", unit);
  if (!existsSync(file)) fail(`Unit ${unit} not found`);
  const text = readFileSync(file, "utf8")
    .replaceAll(/(?<![\w.])\/(?=(etc|mnt|opt|var)\/)/g, `${machine}/`)
    .replaceAll("\\\n", "");
  return (key) =>
    Array.from(text.matchAll(new RegExp(`^${key}=(.*)$`, "gm")), ([, value = ""]) => value);
}

async function startUnit(unit: string): Promise<void> {
  const valuesOf = readUnit(unit);
  if (unit.endsWith(".timer")) return void readUnit(unit.replace(".timer", ".service"));
  const env = valuesOf("Environment").map((each) => /^(\w+)=(.*)$/.exec(each)?.slice(1) ?? []);
  const [cwd = ""] = valuesOf("WorkingDirectory");
  const [first, ...others] = [...valuesOf("ExecStart"), ...valuesOf("ExecStartPost")].map(
    (line): Program => ({
      argv: ["sh", "-c", `exec ${line.replaceAll("%%", "%")}`],
      env: Object.fromEntries(env),
      cwd,
      volumes: {},
    }),
  );
  if (first === undefined) return fail(`${unit} starts nothing`);
  if (valuesOf("Type").join() !== "oneshot") return start(unit, first);
  for (const each of [first, ...others]) runToEnd(each);
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
  const [, copied = ""] = /^COPY (LICENSE .*) \.\/$/m.exec(dockerfile) ?? [];
  const context = readFileSync(join(clone, ".dockerignore"), "utf8");
  const app = join(machine, "images", tag);
  mkdirSync(app, { recursive: true });
  for (const file of [...copied.split(" "), "package.json", "node_modules", "gen", "dist"]) {
    const isBuilt = ["node_modules", "dist"].includes(file);
    if (!isBuilt && !context.includes(`\n!${file}\n`)) fail(`${file} is not in the context`);
    const path = join(app, basename(file));
    rmSync(path, { force: true });
    symlinkSync(join(clone, file), path);
  }
}

/** The folder of a volume. */
function makeVolume(name: string): string {
  const folder = join(machine, "volumes", name);
  mkdirSync(folder, { recursive: true });
  return folder;
}

const findContainer = (name: string) =>
  state.containers[name] ?? fail(`no such container: ${name}`);

async function runContainer(args: string[]): Promise<void> {
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
  const volumes = from === undefined ? {} : { ...findContainer(from).volumes };
  for (const each of values.volume ?? []) {
    const [volume = "", path = ""] = each.split(":");
    volumes[path] = makeVolume(volume);
  }
  const [, variables = ""] = /^ENV (.*)$/m.exec(dockerfile) ?? [];
  const env = [...variables.split(" "), ...(values.env ?? [])].map((each) => each.split("="));
  const entrypoint = values.entrypoint ? [values.entrypoint] : ["node", "dist/bin.js"];
  const what = { argv: [...entrypoint, ...own], env: Object.fromEntries(env), cwd, volumes };
  if (values.rm) return runToEnd(what);
  const { name = "" } = values;
  if (state.containers[name]) fail(`Conflict. The container name "/${name}" is already in use`);
  state.containers[name] = what;
  return start(name, what);
}

async function docker([command = "", ...args]: string[]): Promise<void> {
  if (command === "run") return runContainer(args);
  if (command === "build") {
    const tag = { ...text, short: "t" } as const;
    const { values, positionals } = parse(args, { tag, "build-arg": text });
    return positionals.join() === "." ? buildImage(values.tag ?? "") : fail("context?");
  }
  const [name = "", ...argv] = args;
  const container = findContainer(name);
  if (command === "start") return start(name, container);
  if (command === "stop") return stop(name);
  if (isRunning(name) !== (command === "exec")) fail(`is container ${name} running?`);
  if (command === "exec") return runToEnd({ ...container, argv });
  if (command !== "rm") fail(`unknown command: ${command}`);
  delete state.containers[name];
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
  const [container = fail("no container")] = spec.containers;
  buildImage("of-the-pods");
  const claims = Object.fromEntries(
    (spec.volumes ?? []).map((each) => [each.name, each.persistentVolumeClaim?.claimName]),
  );
  const volumes = container.volumeMounts.map(({ name, mountPath }) => [
    mountPath,
    makeVolume(claims[name] ?? `${name}-investor-records-0`),
  ]);
  const env = Object.fromEntries(container.env.map(({ name, value = "" }) => [name, value]));
  const argv = (container.command ?? ["node", "dist/bin.js"]).map((each) =>
    each.replaceAll(/\$\((\w+)\)/g, (all, name) => env[name] ?? all),
  );
  const cwd = join(machine, "images/of-the-pods");
  return { argv, env, cwd, volumes: Object.fromEntries(volumes) };
}

/** The specification of an object of the cluster, by its kind and name. */
function findSpec(of: string) {
  const objects: { kind: string; metadata: { name: string }; spec: ReturnType<JSON["parse"]> }[] =
    JSON.parse(readFileSync(join(machine, "objects.json"), "utf8"));
  const found = objects.find(
    ({ kind, metadata }) => `${kind}/${metadata.name}`.toLowerCase() === of,
  );
  return found?.spec ?? fail(`${of} not found`);
}

async function kubectl([command = "", ...args]: string[]): Promise<void> {
  const options = { from: text, for: text, timeout: text, replicas: text };
  const { values, positionals } = parse(args, options);
  const object = positionals.join("/");
  const [kind = "", name = ""] = object.split("/");
  if (command === "create") {
    if (kind !== "job" || !/^[a-z][a-z0-9-]{0,62}$/.test(name)) fail(`${object}?`);
    if (state.jobs.includes(name)) fail(`jobs.batch "${name}" already exists`);
    const { spec } = findSpec(values.from ?? "").jobTemplate.spec.template;
    const needsOther = spec.affinity?.podAffinity !== undefined;
    if (needsOther && !isRunning("investor-records-0")) fail("it cannot be scheduled");
    runToEnd(podProgram(spec));
    state.jobs.push(name);
  } else if (command === "wait") {
    const isOver = kind === "job" ? state.jobs.includes(name) : !isRunning(name);
    const condition = kind === "job" ? "condition=complete" : "delete";
    if (!isOver || values.for !== condition || !values.timeout) fail(`timed out: ${object}`);
  } else if (command === "scale") {
    const { spec } = findSpec(object).template;
    if (values.replicas === "0") return stop(`${name}-0`);
    const { volumeMounts, env } = spec.containers[0];
    const mounts = volumeMounts.filter((each: { name: string }) => each.name === "data");
    await start(`${name}-0`, podProgram({ containers: [{ env, volumeMounts: mounts }] }));
  } else fail(`unknown command: ${command}`);
}

const [tool = "", ...args] = process.argv.slice(2);
try {
  const tools: Record<string, typeof docker> = { docker, kubectl, systemctl };
  await (tools[tool] ?? fail("unknown tool"))(args);
} catch (error) {
  console.error(`${tool}: ${(error as Error).message}`);
  process.exitCode = 1;
} finally {
  writeFileSync(stateFile, JSON.stringify(state));
}
