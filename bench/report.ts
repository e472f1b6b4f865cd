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
const readme = join(here, "../README.md");
const region = /(<!-- bench -->\n).*(<!-- \/bench -->)/s;

/** Writes the results, the page and the plot about them, and the table in README. */
export async function write(results: Results): Promise<void> {
  const folder = join(here, "results");
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder);
  const name = `${results.date.replaceAll(":", "")}.json`;
  writeFileSync(join(folder, name), `${JSON.stringify(results, undefined, 2)}\n`);
  const docs = join(here, "../docs");
  writeFileSync(join(docs, "performance.svg"), await plot(results.machine, results.outcomes));
  writeFileSync(join(docs, "performance.md"), toPage(results));
  const text = readFileSync(readme, "utf8");
  const summary = toSummary(results);
  writeFileSync(
    readme,
    text.replace(region, (_, start, end) => `${start}${summary}\n${end}`),
  );
}

/** Figures that stand alone. */
export function tabulate(figures: Figure[]): string {
  const rows = figures.map(({ title, value, unit }) => [title, show(value, ` ${unit}`)]);
  return toTable([["figure", ""], ...rows]);
}

/** The comparisons by gRPC, as README shows them. */
function toSummary({ outcomes, machine }: Results): string {
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
  return `![Calls a second of the service and of its peers](docs/performance.svg)

${toTable([["gRPC", "callers", ...servers], ...rows])}

Calls a second of many callers, the median time of a call of a lone one, and the server's CPU time per call,
each with durable writes, on ${machine}, shared by load,
servers and database. [More comparisons, and how they are measured](docs/performance.md).`;
}

function toPage({ date, machine, outcomes, figures }: Results): string {
  const page = readFileSync(join(here, "page.md"), "utf8");
  const values: Record<string, string> = {
    date: date.replace("T", " "),
    machine,
    comparisons: toTable([
      [
        "call",
        "callers",
        "server",
        "calls/s",
        "median, ms",
        "p99, ms",
        "CPU, µs",
        "MiB",
        "× calls/s",
        "× median",
        "× CPU",
      ],
      ...outcomes.flatMap(toRows),
    ]),
    figures: tabulate(figures),
  };
  return page.replaceAll(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

function toRows(outcome: Outcome): string[][] {
  return outcome.standings.map(({ name, rate, p50, p99, cpu, memory, ratios }, i) => [
    i === 0 ? toTitle(outcome) : "",
    i === 0 ? show(outcome.callers) : "",
    name,
    show(rate),
    ...[p50, p99, cpu, memory].map((each) => show(each)),
    ...[ratios.rate, ratios.p50, ratios.cpu].map((each) => (i === 0 ? "" : show(each))),
  ]);
}
