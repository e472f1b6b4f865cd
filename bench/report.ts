import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import type { Memory } from "./entrant.ts";
import { plot } from "./plot.ts";
import type { Outcome } from "./race.ts";
import { type Figure, type Growth, usualCallers } from "./suites/plan.ts";
import { show, toTable } from "./table.ts";

/** All that a run has found. */
export interface Results {
  date: string;
  machine: string;
  outcomes: Outcome[];
  figures: Figure[];
  growth: Growth[];
  memory: Memory[];
}

const here = import.meta.dirname;
const docs = join(here, "../docs");
const readme = join(here, "../README.md");
const region = /(<!-- bench -->\n).*(<!-- \/bench -->)/s;

/** The machine in a few words. */
export function describeMachine(): string {
  const [{ model = "unknown CPU" } = {}, ...others] = cpus();
  const gib = Math.round(totalmem() / 2 ** 30);
  return `${others.length + 1} cores of ${model.trim()}, ${gib} GiB, Node.js ${process.version}`;
}

/** Writes the results, the page and the plot about them, and the rows in README. */
export async function write(results: Results): Promise<void> {
  const runs = join(here, "results");
  mkdirSync(runs, { recursive: true });
  const name = results.date.replaceAll(":", "");
  writeFileSync(join(runs, `${name}.json`), `${JSON.stringify(results, undefined, 2)}\n`);
  writeFileSync(join(docs, "performance.svg"), await plot(results));
  writeFileSync(join(docs, "performance.md"), toPage(results));
  const text = readFileSync(readme, "utf8");
  writeFileSync(
    readme,
    text.replace(region, (_, start, end) => `${start}${toSummary(results)}\n${end}`),
  );
}

/** The races that README shows. */
const shown = ["Create, MongoDB", "Get, MongoDB", "Create, SQLite", "Get, SQLite"];

function toSummary({ outcomes, machine }: Results): string {
  const peers = ["Investor Records", "grpc-go", "grpc-js"];
  const rows = shown.map((title) => {
    const { standings = [] } = outcomes.find((each) => each.title === title) ?? {};
    return [
      title,
      ...peers.map((peer) => {
        const { rate = Number.NaN, cpu = Number.NaN } =
          standings.find(({ name }) => name === peer) ?? {};
        return `${show(rate)}/s, ${show(cpu)} µs`;
      }),
    ];
  });
  const heads = ["gRPC, 128 callers", ...peers];
  return [
    "![Calls a second of the service and of its peers](docs/performance.svg)",
    toTable([heads, ...rows]),
    "Calls a second, and the CPU time of the server per call. Peers execute one statement per call, " +
      "with equally durable writes. [Performance](docs/performance.md) has all comparisons, with " +
      "latencies, memory and how each is measured.",
    `The machine has ${machine}; load, servers and database share it.`,
  ].join("\n\n");
}

function toPage({ date, machine, outcomes, figures, growth, memory }: Results): string {
  const page = readFileSync(join(here, "page.md"), "utf8");
  const most = Math.max(...growth.map(({ records }) => records));
  const values: Record<string, string> = {
    date: date.replace("T", " "),
    machine,
    outcomes: outcomes.map(toSection).join("\n\n"),
    figures: toTable([
      ["figure", ""],
      ...figures.map(({ title, value, unit }) => [title, show(value, ` ${unit}`)]),
    ]),
    records: toGrowth(growth.filter(({ callers }) => callers === usualCallers)),
    callers: toGrowth(
      growth.filter(({ operation, records }) => operation !== "page N" && records === most),
    ),
    memory: toTable([
      ["server", "store", "idle", "after the load"],
      ...memory.map(({ name, store, idle, afterLoad }) => [
        name,
        store,
        show(idle, " MiB"),
        show(afterLoad, " MiB"),
      ]),
    ]),
  };
  return page.replaceAll(/\{(\w+)\}/g, (_, key) => values[key] ?? "");
}

function toGrowth(growth: Growth[]): string {
  return toTable([
    ["store", "call", "callers", "records", "calls/s", "median", "p99", "CPU a call"],
    ...growth
      .toSorted((a, b) => a.store.localeCompare(b.store) || a.callers - b.callers)
      .map((each) => [
        each.store,
        each.operation,
        show(each.callers),
        show(each.records),
        show(each.rate),
        show(each.p50, " ms"),
        show(each.p99, " ms"),
        show(each.cpu, " µs"),
      ]),
  ]);
}

function toSection({ title, meaning, callers, standings }: Outcome): string {
  const rows = standings.map(({ name, rate, p50, p99, cpu, ratios }, i) => [
    name,
    show(rate),
    show(p50, " ms"),
    show(p99, " ms"),
    show(cpu, " µs"),
    ...(i === 0 ? ["", "", ""] : [ratios.rate, ratios.p50, ratios.cpu].map((each) => show(each))),
  ]);
  const head = [
    "server",
    "calls/s",
    "median",
    "p99",
    "CPU a call",
    "× calls/s",
    "× median",
    "× CPU",
  ];
  const who = callers === 1 ? "One caller." : `${callers} callers.`;
  return `### ${title}\n\n${meaning} ${who}\n\n${toTable([head, ...rows])}`;
}
