import { execFile } from "node:child_process";
import { promisify } from "node:util";

/** The most findings to ask SQLite for. */
const maxFindings = 100;

/** Prints SQLite's findings, or why it cannot check, as JSON. */
const program = `
  const { DatabaseSync } = require("node:sqlite");
  let result;
  try {
    const db = new DatabaseSync(process.argv[1], { readOnly: true, timeout: 5000 });
    const rows = db.prepare("PRAGMA integrity_check(${maxFindings})").all();
    const lines = rows.flatMap((row) => row.integrity_check.split("\\n"));
    result = { found: lines.filter((line) => !line.startsWith("***")) };
  } catch ({ message, errcode }) {
    result = { message, errcode };
  }
  console.log(JSON.stringify(result));
`;

/**
 * Lets SQLite check a file, in a separate process: the check is a single call, which can only be stopped by
 * ending its process. It is a single transaction too, which keeps others from emptying the WAL.
 *
 * @param signal ends the check
 * @throws {Error} for operators, if the file is damaged, or could not be checked
 */
export async function checkIntegrity(path: string, signal: AbortSignal): Promise<void> {
  const options = { signal, killSignal: "SIGKILL" } as const;
  const args = ["-e", program, "--", path];
  const { stdout } = await promisify(execFile)(process.execPath, args, options).catch((error) => {
    throw new Error(`its check ended early (${error.code ?? error.signal})`);
  });
  const { found, ...failure } = JSON.parse(stdout);
  if (found === undefined) throw Object.assign(new Error(), failure);
  if (found[0] === "ok") return;
  const more = found.length > 1 ? `, and ${found.length - 1} more` : "";
  throw new Error(
    `it is damaged: ${found[0]}${more}; "sqlite3 FILE 'PRAGMA integrity_check'" shows all`,
  );
}
