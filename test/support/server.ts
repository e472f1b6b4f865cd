import { pino } from "pino";
import { onTestFinished } from "vitest";
import { startServer } from "../../src/server.ts";
import { temporaryFolder } from "./folder.ts";
import { readSettings } from "./settings.ts";

/**
 * Starts the whole service in this process, on a free port and over an SQLite file of its own, until
 * the end of the test.
 *
 * @param flags settings as flags of the command line
 * @returns it, its folder, and the lines that it has logged so far; those of errors also apart
 */
export async function startInProcess(flags: Record<string, string> = {}) {
  const folder = temporaryFolder();
  const lines: Record<string, unknown>[] = [];
  const errors: typeof lines = [];
  const write = (text: string) => {
    const line = JSON.parse(text);
    lines.push(line);
    if (line.level >= 50) errors.push(line);
  };
  const log = pino({ level: flags["--log-level"] ?? "info" }, { write });
  const own = { "--database-url": `sqlite:${folder}/data/investors.db` };
  const database = flags["--database-url-file"] === undefined ? own : {};
  const server = await startServer(
    readSettings({ ...database, "--port": "0", ...flags }),
    log,
    (error) => {
      throw error;
    },
  );
  onTestFinished(async () => void (await server.stop()));
  const [port = 0] = server.ports;
  return { ...server, port, folder, lines, errors };
}
