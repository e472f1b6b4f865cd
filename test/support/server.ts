import { pino } from "pino";
import { onTestFinished } from "vitest";
import { startServer } from "../../src/server.ts";
import { temporaryFolder } from "./folder.ts";
import { readSettings } from "./settings.ts";

/**
 * Starts the whole service in this process, on free ports and over an SQLite file of its own, until
 * the end of the test.
 *
 * @param flags settings as flags of the command line
 * @returns it, its folder, and the errors that it has logged so far
 */
export async function startInProcess(flags: Record<string, string> = {}) {
  const folder = temporaryFolder();
  const errors: string[] = [];
  const log = pino({ level: "error" }, { write: (line) => void errors.push(line) });
  const own = { "--database-url": `sqlite:${folder}/data/investors.db` };
  const ports = { "--grpc-port": "0", "--http-port": "0" };
  const server = await startServer(readSettings({ ...own, ...ports, ...flags }), log, (error) => {
    throw error;
  });
  onTestFinished(async () => void (await server.stop()));
  return { ...server, folder, errors };
}
