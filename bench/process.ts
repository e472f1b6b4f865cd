import { join } from "node:path";
import { fillSqlite } from "./database.ts";
import type { Plan } from "./plan.ts";
import { medianOf } from "./race.ts";
import type { Figure } from "./report.ts";
import { startService } from "./server.ts";

const openingBrace = 0x7b;

/** Measures how long the service takes to start, and its memory while it lists all records. */
export async function measureProcess({ folder, listed, starts, say }: Plan): Promise<Figure[]> {
  say(`list ${listed} records in one reply, and start ${starts} times`);
  const path = join(folder, "listed.db");
  await fillSqlite(path, listed);
  const service = await startService(`sqlite:${path}`);
  const response = await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`);
  let found = 0;
  for await (const chunk of response.body ?? []) {
    for (const byte of chunk as Uint8Array) if (byte === openingBrace) found += 1;
  }
  if (found !== listed) throw new Error(`the list held ${found} of ${listed} records`);
  const { peak } = service.memory();
  await service.stop();

  const times: number[] = [];
  for (let round = 0; round < starts; round += 1) {
    const started = await startService(`sqlite:${path}`);
    times.push(started.startMs);
    await started.stop();
  }
  return [
    {
      title: `Peak memory for a REST list of ${listed.toLocaleString("en")} records`,
      value: peak,
      unit: "MiB",
      goal: { is: "at most", must: 200, aim: 150 },
    },
    {
      title: `Start until ready, SQLite, median of ${starts}`,
      value: medianOf(times),
      unit: "ms",
      goal: { is: "at most", must: 250, aim: 150 },
    },
  ];
}
