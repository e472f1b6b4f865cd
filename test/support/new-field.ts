/** The product with one field more, as CONTRIBUTING.md has one added. */
import { execFileSync } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { copyClone, root, toolPath } from "./clone.ts";
import { ask, type Service } from "./service.ts";

/** The field, which has a name of two words, and a number whose tag takes two bytes. */
const [name, localName, number] = ["former_name", "formerName", 1000];

/** What the recipe changes, by the file that it names. */
const steps: [file: string, change: (text: string) => string][] = [
  [
    "proto/investor/v1/investor.proto",
    (text) =>
      text.replaceAll(
        /(\nmessage (?:Investor|CreateInvestorRequest) \{[^}]*)\}/g,
        `$1  // An earlier name.\n  string ${name} = ${number};\n}`,
      ),
  ],
  [
    "proto/investor/v1/openapi.json",
    (text) => {
      // Both schemas of a record, and the examples of replies.
      const added = (member: unknown) =>
        typeof member === "object" ? { $ref: "#/components/schemas/FreeText" } : "";
      return JSON.stringify(JSON.parse(text), (_, value) =>
        value?.language ? { ...value, [localName]: added(value.language) } : value,
      );
    },
  ],
  [
    "src/investor/investor.ts",
    (text) =>
      text.replace(/(?<=laterFields = \[)[^\]]*/, (names) =>
        [names, `"${localName}"`].filter(Boolean).join(", "),
      ),
  ],
];

/** The names of the files that the recipe changes. */
export const changedFiles = steps.map(([file]) => basename(file));

/**
 * Copies the product and other files to a folder, adds the field, and builds the service.
 *
 * @returns its program
 */
export function buildWithField(folder: string, others: string[] = []): string {
  copyClone(folder);
  for (const name of ["buf.gen.yaml", "buf.yaml", ...others]) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  for (const [path, change] of steps) {
    const file = join(folder, path);
    const text = readFileSync(file, "utf8");
    const changed = change(text);
    if (changed === text) throw new Error(`${path} stays as it is`);
    writeFileSync(file, changed);
  }
  runIn(folder, "npm", "run", "-s", "generate");
  runIn(folder, "npm", "run", "-s", "build");
  return join(folder, "dist/bin.js");
}

/** Creates a record by REST; returns the status and what the reply has. */
export async function create(service: Service, body: object, headers = {}) {
  const all = { "content-type": "application/json", ...headers };
  const init = { method: "POST", headers: all, body: JSON.stringify(body) };
  const response = await ask(service, "/v1/investors", init);
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

/** All records of a service, by REST. */
export async function list(service: Service): Promise<Record<string, unknown>[]> {
  const response = await ask(service, "/v1/investors");
  return (await response.json()) as Record<string, unknown>[];
}

/** Runs a program of the repository in a folder; throws with what it has said if it fails. */
export function runIn(folder: string, program: string, ...args: string[]): void {
  const env = { ...process.env, PATH: toolPath };
  execFileSync(program, args, { cwd: folder, env, encoding: "utf8", stdio: "pipe" });
}
