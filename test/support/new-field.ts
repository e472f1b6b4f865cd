/** The product with a thirteenth field, `email`, as CONTRIBUTING.md has one added. */
import { execFileSync } from "node:child_process";
import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { copyClone, root, toolPath } from "./clone.ts";

/** What the recipe changes, by the file that it names: each text that it finds, and what it makes of it. */
const steps = {
  "investor.proto": [
    "proto/investor/v1/investor.proto",
    [
      /(?<=\n {2}(reserved|string request_id =) 13;\n)/g,
      "\n  // The e-mail address.\n  string email = 14;\n",
    ],
  ],
  "openapi.json": [
    "proto/investor/v1/openapi.json",
    [
      /(?<="\$ref": "#\/components\/schemas\/Language" \})/g,
      ', "email": { "$ref": "#/components/schemas/FreeText" }',
    ],
    [/(?<="language": "en")/g, ', "email": ""'],
  ],
  "investor.ts": ["src/investor/investor.ts", [/(?<=laterFields = \[)/g, '"email"']],
} as const satisfies Record<string, [file: string, ...changes: [at: RegExp, text: string][]]>;

export type Step = keyof typeof steps;

export const stepNames = Object.keys(steps) as Step[];

/**
 * Copies the product to a folder, and adds the field, but for one step.
 *
 * @param others what else to copy
 */
export function addField(folder: string, leftOut?: Step, others: string[] = []): void {
  copyClone(folder);
  for (const name of ["buf.gen.yaml", "buf.yaml", ...others]) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  for (const name of stepNames) {
    if (name === leftOut) continue;
    const [path, ...changes] = steps[name];
    const file = join(folder, path);
    let text = readFileSync(file, "utf8");
    for (const [at, added] of changes) {
      if (!at.test(text)) throw new Error(`${path} has nothing like ${at}`);
      text = text.replaceAll(at, added);
    }
    writeFileSync(file, text);
  }
  runIn(folder, "npm", "run", "-s", "generate");
}

/** Copies the product to a folder, adds the field, and builds the service; returns its program. */
export function buildWithField(folder: string): string {
  addField(folder);
  runIn(folder, "npm", "run", "-s", "build");
  return join(folder, "dist/bin.js");
}

/** Runs a program of the repository in a folder; throws with what it has said if it fails. */
export function runIn(folder: string, program: string, ...args: string[]): void {
  const env = { ...process.env, PATH: toolPath };
  execFileSync(program, args, { cwd: folder, env, encoding: "utf8", stdio: "pipe" });
}
