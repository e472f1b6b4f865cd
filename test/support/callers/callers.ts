import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Writable } from "node:stream";
import { stripVTControlCharacters } from "node:util";
import { create, toBinary } from "@bufbuild/protobuf";
import { onTestFinished } from "vitest";
import { CreateInvestorRequestSchema } from "../../../gen/investor/v1/investor_pb.js";
import { copyClone } from "../clone.ts";
import { findPython } from "../python.ts";
import type { aCreate } from "../records.ts";

/** Sixteen callers in a process of their own, which create each record that is asked for, and get it. */
export interface Callers {
  /** Where requests go, a {@link toLine line} each. */
  readonly input: Writable;
  /** The ids of the records so far, and what the calls say that failed. */
  readonly created: string[];
  readonly failures: string[];
  /** Resolves when the input has ended, and all calls with it. */
  readonly finished: Promise<unknown>;
}

/** A request as callers read it. */
export function toLine(request: ReturnType<typeof aCreate>): string {
  const bytes = toBinary(CreateInvestorRequestSchema, create(CreateInvestorRequestSchema, request));
  return `${Buffer.from(bytes).toString("hex")}\n`;
}

/** Starts callers by a command, until the end of the test. */
export function startCallers(
  [program = "", ...args]: string[],
  cwd = import.meta.dirname,
): Callers {
  const child = spawn(program, args, { cwd, stdio: ["pipe", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  const callers = { input: child.stdin, created: [] as string[], failures: [] as string[] };
  createInterface(child.stdout).on("line", (text) => {
    // Maven resets the colour, even of nothing.
    const line = stripVTControlCharacters(text);
    if (line === "") return;
    const isId = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(line);
    (isId ? callers.created : callers.failures).push(line);
  });
  return { ...callers, finished: once(child, "close") };
}

/**
 * The command of the callers in Go, built in a folder. It takes a protocol, a target, a file with a
 * service config, and one with a CA or nothing.
 */
export function buildGo(folder: string): string[] {
  const program = join(folder, "callers");
  execFileSync("go", ["build", "-o", program, "."], { cwd: import.meta.dirname });
  return [program];
}

/** The same in Python. */
export async function findPythonCallers(): Promise<string[]> {
  return [await findPython(), join(import.meta.dirname, "callers.py")];
}

/** Builds the callers in Java in a folder, by the project of the example. */
export function buildJava(folder: string) {
  copyClone(folder);
  const cwd = join(folder, "examples/java");
  const name = "Callers.java";
  copyFileSync(join(import.meta.dirname, name), join(cwd, "src/main/java", name));
  execFileSync("mvn", ["-q", "-B", "compile"], { cwd });
  return (target: string, configFile: string) => {
    const args = ["-Dexec.mainClass=Callers", `-Dexec.args=${target} ${configFile}`];
    return startCallers(["mvn", "-q", "-B", "exec:java", ...args], cwd);
  };
}
