import { type Contestant, npmStart, startService } from "../contestant.ts";
import { medianOf } from "../race.ts";
import type { Figure, Plan } from "./plan.ts";

/** Measures how long servers take to start, in turn; the first is the service. */
export async function measureStarts(
  servers: (() => Promise<Contestant>)[],
  { starts, say }: Plan,
): Promise<Figure[]> {
  say(`${starts} starts of each`);
  const times = new Map<string, number[]>();
  for (let round = 0; round < starts; round += 1) {
    for (const start of servers) {
      const contestant = await start();
      times.set(contestant.name, [...(times.get(contestant.name) ?? []), contestant.startMs]);
      await contestant.stop();
    }
  }
  return Array.from(times, ([name, all], i) => ({
    title: `Start until ready, SQLite, median of ${starts}: ${name}`,
    value: medianOf(all),
    unit: "ms",
    ...(i === 0 && { goal: { is: "at most", must: 300, aim: 200 } }),
  }));
}

const openingBrace = 0x7b;
const commands = [
  { name: "npm start", command: npmStart, must: 150 },
  { name: "node dist/main.js", command: ["node", "dist/main.js", "serve"], must: 200 },
];

/** Measures the most memory of a process that replies with a list of all records. */
export async function measureLists(
  databaseUrl: string,
  records: number,
  { say }: Plan,
): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const { name, command, must } of commands) {
    say(`a list of ${records} records by ${name}`);
    const service = await startService(databaseUrl, command);
    const response = await fetch(`http://127.0.0.1:${service.httpPort}/v1/investors`);
    let found = 0;
    for await (const chunk of response.body ?? []) {
      for (const byte of chunk as Uint8Array) if (byte === openingBrace) found += 1;
    }
    if (found !== records) throw new Error(`the list held ${found} of ${records} records`);
    figures.push({
      title: `Memory for a REST list of ${records.toLocaleString("en")} records, ${name}`,
      value: service.memoryMib().peak,
      unit: "MiB",
      goal: { is: "at most", must, aim: 120 },
    });
    await service.stop();
  }
  return figures;
}
