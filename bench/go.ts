import { execFileSync } from "node:child_process";
import { join } from "node:path";

/** The programs of the peers in Go. */
export interface GoPeers {
  /** grpc-go, started with the URL of a database. */
  grpc: string;
  /** PocketBase, started with a folder. */
  pocketBase: string;
}

/**
 * Builds the peers in Go; undefined where that cannot be done.
 *
 * @throws {Error} it cannot be done under CI
 */
export function buildGoPeers(): GoPeers | undefined {
  const cwd = join(import.meta.dirname, "peers/go");
  const run = (program: string, ...args: string[]) =>
    execFileSync(program, args, { cwd, stdio: ["ignore", "ignore", "inherit"] });
  try {
    run(join(import.meta.dirname, "../node_modules/.bin/buf"), "generate");
    // With the driver of SQLite that main.go names, the only one that has to be compiled.
    const options = ["-buildvcs=false", "-tags", "no_default_driver"];
    run("go", "build", ...options, "-o", "bin/", "./grpc", "./pocketbase");
  } catch (error) {
    if (process.env.CI) throw error;
    console.warn(`SKIPPED: the peers in Go, which need Go and a C compiler: ${error}`);
    return undefined;
  }
  return { grpc: join(cwd, "bin/grpc"), pocketBase: join(cwd, "bin/pocketbase") };
}
