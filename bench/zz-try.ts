import { spawn } from "node:child_process";
import { readFileSync, mkdtempSync } from "node:fs";
import { join } from "node:path";
import { run } from "./load/run.ts";
import { creates, gets, pathTo } from "./work.ts";
import { constant } from "./limits/constant.ts";
import { sqliteDatabase } from "./database.ts";
const flags = ["--max-semi-space-size=8", "--no-allocation-site-pretenuring"];
const here = import.meta.dirname;
const rounds = Number(process.argv[2] ?? 3), seconds = Number(process.argv[3] ?? 2);
const only = process.argv[4];
const prof = process.argv[5];
async function start(name: string, args: string[], pattern: RegExp) {
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] });
  process.once("exit", () => child.kill("SIGKILL"));
  const m = await new Promise<RegExpExecArray>((resolve, reject) => {
    let out = "";
    for (const s of [child.stdout, child.stderr]) s.on("data", (d) => { out += d; const x = pattern.exec(out); if (x) resolve(x); });
    child.once("exit", () => reject(new Error(name + out)));
  });
  const cpu = () => { const f = readFileSync(`/proc/${child.pid}/stat`, "utf8").split(") ")[1]!.split(" "); return (Number(f[11]) + Number(f[12])) * 10_000; };
  return { name, child, port: Number(m[1]), httpPort: Number(m[2] ?? m[1]), cpu };
}
const svc = async (name: string, root: string, extra: string[] = []) => {
  const dir = mkdtempSync("/tmp/eng-b-");
  const s = await start(name, [...flags, ...extra, join(root, "src/bin.ts"), "--database-url", `sqlite:${dir}/a.db`, "--grpc-port", "0", "--http-port", "0"], /grpc:\/\/[\d.]+:(\d+) and http:\/\/[\d.]+:(\d+)/);
  await run({ protocol: "grpc", port: s.port, path: pathTo("createInvestor"), callers: 32, seconds: 0.5, work: creates("grpc") } as never);
  const known = await sqliteDatabase(`${dir}/a.db`).sample(300);
  return { ...s, known };
};
const same = [constant as never];
const all: any[] = [];
if (!only || only.includes("new")) all.push(await svc("new", "/work/wt-engine", prof ? ["--cpu-prof", "--cpu-prof-dir=" + prof] : []));
if (!only || only.includes("old")) all.push(await svc("old", "/work/main"));
if (!only || only.includes("h2")) all.push({ ...(await start("h2", [join(here, "limits/http2.ts")], /^(\d+)$/m)), known: same, protos: ["grpc"] });
if (!only || only.includes("h1")) all.push({ ...(await start("h1", [join(here, "limits/http.ts")], /^(\d+)$/m)), known: same, protos: ["connect"] });
const rows: Record<string, { rate: number[]; cpu: number[] }> = {};
for (let r = 0; r < rounds + 1; r++) for (const protocol of ["grpc", "connect"] as const) for (const s of all) {
  if (s.protos && !s.protos.includes(protocol)) continue;
  const before = s.cpu();
  const m = await run({ protocol, port: protocol === "grpc" ? s.port : s.httpPort, path: pathTo("getInvestor"), callers: 128, seconds, work: gets(protocol, s.known) } as never);
  const calls = m.rate * seconds;
  if (r === 0) continue;
  const row = (rows[`${protocol} ${s.name}`] ??= { rate: [], cpu: [] });
  row.rate.push(m.rate); row.cpu.push((s.cpu() - before) / calls);
}
const med = (v: number[]) => v.toSorted((a, b) => a - b)[v.length >> 1]!;
for (const [n, { rate, cpu }] of Object.entries(rows)) console.log(n.padEnd(14), med(rate).toFixed(0).padStart(7), "/s", med(cpu).toFixed(1).padStart(6), "us", cpu.map((c) => c.toFixed(1)).join(" "));
if (prof) { for (const s of all) if (s.name === "new") { s.child.kill("SIGTERM"); await new Promise((d) => s.child.once("exit", d)); } }
process.exit(0);
