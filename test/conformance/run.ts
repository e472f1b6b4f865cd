/**
 * Runs the official conformance suite of Connect (https://github.com/connectrpc/conformance)
 * against this project's transports. It needs Go; under CI that must be there, elsewhere
 * the suite is skipped without it.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const version = "v1.0.5";
const here = import.meta.dirname;

/** Timeout of each step, in milliseconds; a server that hangs would hold the runner up for ever. */
const timeLimitMs = 10 * 60_000;

const bin = join(here, "../../node_modules/.bin");

if (spawnSync("go", ["version"]).error !== undefined) {
  if (process.env.CI) throw new Error("the conformance suite needs Go");
  console.warn("SKIPPED: the conformance suite, which needs Go");
  process.exit(0);
}

const tools = mkdtempSync(join(tmpdir(), "conformance-"));
const module = `connectrpc.com/conformance@${version}`;
run("go", ["install", `connectrpc.com/conformance/cmd/connectconformance@${version}`]);
const { Dir } = JSON.parse(run("go", ["mod", "download", "-json", module]));
run(join(bin, "buf"), [
  ...["generate", join(Dir, "proto"), "--template"],
  JSON.stringify({
    version: "v2",
    clean: true,
    plugins: [
      {
        local: join(bin, "protoc-gen-es"),
        out: join(here, "gen"),
        opt: ["target=js+dts", "import_extension=js"],
      },
    ],
  }),
]);
run(join(bin, "tsc"), ["-p", here]);
// Of several servers that start at once, a busy machine has none ready in the runner's ten seconds.
const options = ["--mode=server", "--max-servers=1", "--conf=config.yaml"];
const args = [...options, ...process.argv.slice(2), "--", process.execPath, "server.ts"];
process.stdout.write(run(join(tools, "connectconformance"), args));

/** Runs a program to its end and gives what it printed, or ends as it did. */
function run(program: string, args: string[]): string {
  const { status, stdout, error } = spawnSync(program, args, {
    timeout: timeLimitMs,
    stdio: ["ignore", "pipe", "inherit"],
    encoding: "utf8",
    maxBuffer: 64 * 1024 * 1024,
    cwd: here,
    env: { ...process.env, GOBIN: tools, GOFLAGS: "-mod=mod" },
  });
  if (error) throw error;
  if (status === 0) return stdout;
  process.stdout.write(stdout);
  process.exit(status ?? 1);
}
