import { execFile } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { inject, onTestFinished } from "vitest";
import { copyClone, root } from "./clone.ts";
import { temporaryFolder } from "./folder.ts";
import type { Service } from "./service.ts";

const execute = promisify(execFile);
const standIns = join(import.meta.dirname, "stand-ins.ts");

/**
 * A machine in a folder, with a built clone in /opt/investor-records, for commands that need systemd,
 * containers or a cluster: they meet stand-ins that run the same programs.
 *
 * @param objects what is in the cluster
 */
export function createMachine(objects: unknown[] = []) {
  const folder = temporaryFolder();
  const clone = join(folder, "opt/investor-records");
  const tools = join(folder, "tools");
  const systemd = join(folder, "etc/systemd/system");
  const data = join(folder, "var/lib/investor-records");
  const metrics = join(folder, "var/lib/prometheus/node-exporter");
  for (const each of [clone, tools, systemd, data, metrics]) mkdirSync(each, { recursive: true });
  copyClone(clone);
  for (const name of ["Dockerfile", ".dockerignore"]) cpSync(join(root, name), join(clone, name));
  symlinkSync(dirname(inject("bin")), join(clone, "dist"));
  writeFileSync(join(folder, "objects.json"), JSON.stringify(objects));
  for (const tool of ["docker", "kubectl", "systemctl"]) {
    const script = `#!/bin/sh\nexec "${process.execPath}" "${standIns}" ${tool} "$@"\n`;
    writeFileSync(join(tools, tool), script, { mode: 0o755 });
  }
  const env = { ...process.env, PATH: `${tools}:${process.env.PATH}`, MACHINE: folder };
  const readPids = (): Record<string, number> => {
    const state = join(folder, "state.json");
    return existsSync(state) ? JSON.parse(readFileSync(state, "utf8")).pids : {};
  };
  const isAlive = (pid: number) => existsSync(`/proc/${pid}/exe`);
  onTestFinished(() => {
    for (const pid of Object.values(readPids()).filter(isAlive)) process.kill(pid, "SIGKILL");
  });

  return {
    folder,
    clone,
    /** Runs commands of a page to their end, and returns what they print. */
    async run(text: string): Promise<string> {
      const script = text
        .replaceAll(/\bnpm (ci( --omit=dev)?|run build)\b/g, "true")
        .replaceAll(/(?<![\w.])\/(?=(etc|mnt|opt|var)\/)/g, `${folder}/`);
      const args = ["-euo", "pipefail", "-c", script];
      return (await execute("bash", args, { cwd: clone, env })).stdout;
    },
    /** The service that a stand-in runs under this name. */
    service(name: string): Pick<Service, "port"> {
      const pid = readPids()[name];
      if (pid === undefined || !isAlive(pid)) throw new Error(`${name} does not run`);
      const log = readFileSync(join(folder, `${name}.log`), "utf8");
      const [, port] = /"serving .* on https?:\/\/[^ "]*:(\d+)/.exec(log) ?? [];
      return { port: Number(port) };
    },
  };
}
