import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Writable } from "node:stream";
import { create, toBinary } from "@bufbuild/protobuf";
import { onTestFinished } from "vitest";
import { CreateInvestorRequestSchema } from "../../../gen/investor/v1/investor_pb.js";
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
export function startCallers([program = "", ...args]: string[]): Callers {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  const callers = { input: child.stdin, created: [] as string[], failures: [] as string[] };
  createInterface(child.stdout).on("line", (line) => {
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
