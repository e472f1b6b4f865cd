import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { judge } from "./goals.ts";
import { plot } from "./plot.ts";
import { type Outcome, toTitle } from "./race.ts";
import { show, toTable } from "./table.ts";

/** A figure that stands alone. */
export interface Figure {
  title: string;
  value: number;
  unit: string;
  goal?: { is: "at least" | "at most"; must: number; aim: number } | undefined;
  /** Its row and column in the table of neighbours, if it stands there. */
  cell?: [neighbour: string, what: string];
}

/** All that a run has found. */
export interface Results {
  date: string;
  machine: string;
  outcomes: Outcome[];
  figures: Figure[];
}

const here = import.meta.dirname;
const root = join(here, "..");

/** Writes the results, and the plot and the tables of the pages about them. */
export async function write(results: Results): Promise<void> {
  const folder = join(here, "results");
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder);
  const name = `${results.date.replaceAll(":", "")}.json`;
  writeFileSync(join(folder, name), `${JSON.stringify(results, undefined, 2)}\n`);
  const { date, machine, outcomes, figures } = results;
  writeFileSync(join(root, "docs/performance.svg"), await plot(machine, outcomes));
  fill("docs/performance.md", {
    machine: `Measured by \`npm run bench\` on ${date.replace("T", " ")} UTC, on ${machine}.`,
    calls: toCalls(outcomes),
  });
  fill("bench/README.md", {
    goals: judge(results).table,
    neighbours: toNeighbours(figures),
    figures: tabulate(figures.filter(({ goal, cell }) => !goal && !cell)),
  });
}

/** Puts texts between the marks of a page that have their names. */
function fill(path: string, texts: Record<string, string>): void {
  const page = readFileSync(join(root, path), "utf8");
  const region = /(<!-- bench (\w+) -->\n).*?(<!-- \/bench -->)/gs;
  const filled = page.replaceAll(region, (_, start, name, end) => `${start}${texts[name]}\n${end}`);
  writeFileSync(join(root, path), filled);
}

/** Figures that stand alone. */
export function tabulate(figures: Figure[]): string {
  const rows = figures.map(({ title, value, unit }) => [title, show(value, ` ${unit}`)]);
  return toTable([["figure", ""], ...rows]);
}

/** What a lone caller's calls took beside each neighbour. */
function toNeighbours(figures: Figure[]): string {
  const cells = new Map(figures.map((figure) => [figure.cell?.join(), figure]));
  const named = (part: 0 | 1) => [...new Set(figures.flatMap(({ cell }) => cell?.[part] ?? []))];
  const columns = named(1);
  const rows = named(0).map((row) => {
    const values = columns.map((column) => cells.get([row, column].join()));
    return [row, ...values.map((each) => (each ? show(each.value, ` ${each.unit}`) : ""))];
  });
  return toTable([["beside", ...columns], ...rows]);
}

const servers = ["Investor Records", "grpc-go", "grpc-js"];

/** The calls a second or a lone caller's median, and the CPU time, of each server by gRPC. */
function toCalls(outcomes: Outcome[]): string {
  const rows = outcomes
    .filter(({ api }) => api === "grpc")
    .map((outcome) => [
      toTitle(outcome),
      show(outcome.callers),
      ...servers.map((server) => {
        const standing = outcome.standings.find(({ name }) => name === server);
        if (standing === undefined) return "";
        const { rate, p50, cpu } = standing;
        const speed = outcome.callers > 1 ? `${show(rate)}/s` : show(p50, " ms");
        return `${speed}, ${show(cpu)} µs`;
      }),
    ]);
  return toTable([["gRPC", "callers", ...servers], ...rows]);
}
