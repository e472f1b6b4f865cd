import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { plot } from "./plot.ts";
import { type Outcome, toTitle } from "./race.ts";
import { show, toTable } from "./table.ts";

/** A figure that stands alone. */
export interface Figure {
  title: string;
  value: number;
  unit: string;
  goal?: { is: "at least" | "at most"; must: number; aim: number };
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
  fill("README.md", { summary: toSummary(results) });
  fill("docs/performance.md", {
    machine: `Measured by \`npm run bench\` on ${date.replace("T", " ")} UTC, on ${machine}.`,
    comparisons: toComparisons(outcomes),
    figures: tabulate(figures),
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

/** The comparisons by gRPC, as README shows them. */
function toSummary({ outcomes }: Results): string {
  const servers = ["Investor Records", "grpc-go", "grpc-js"];
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
  return `${toTable([["gRPC", "callers", ...servers], ...rows])}

Calls a second, or the median time of a lone caller's call, and the server's CPU time per call, with durable writes: [more](docs/performance.md).`;
}

function toComparisons(outcomes: Outcome[]): string {
  const measured = ["calls/s", "median, ms", "p99, ms", "CPU, µs", "MiB"];
  const titles = ["call", "callers", "server", ...measured, "× calls/s"];
  const rows = outcomes.flatMap((outcome) =>
    outcome.standings.map(({ name, rate, p50, p99, cpu, memory, ratios }, i) => {
      const figures = [rate, p50, p99, cpu, memory].map((each) => show(each));
      return i === 0
        ? [toTitle(outcome), show(outcome.callers), name, ...figures, ""]
        : ["", "", name, ...figures, show(ratios.rate)];
    }),
  );
  return toTable([titles, ...rows]);
}
