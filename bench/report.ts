import { readFileSync, writeFileSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { join } from "node:path";
import type { Answer } from "./compare.ts";
import { plot } from "./plot.ts";
import type { Figure, Growth } from "./suites/plan.ts";

/** All that a run has found. */
export interface Results {
  date: string;
  machine: string;
  answers: Answer[];
  figures: Figure[];
  growth: Growth[];
}

const here = import.meta.dirname;
const readme = join(here, "../README.md");
const region = /(<!-- bench -->\n).*(<!-- \/bench -->)/s;

/** The machine in a few words. */
export function describeMachine(): string {
  const [{ model = "unknown CPU" } = {}, ...others] = cpus();
  const gib = Math.round(totalmem() / 2 ** 30);
  return `${others.length + 1} cores of ${model.trim()}, ${gib} GiB, Node.js ${process.version}`;
}

/**
 * Prints the results as a table and, if they are to be written, puts them into
 * results.json, the plot and README.
 */
export async function report(
  results: Results,
  { isWritten }: { isWritten: boolean },
): Promise<void> {
  const table = toMarkdown(results);
  console.log(`\n${table}`);
  if (!isWritten) return;
  writeFileSync(join(here, "results.json"), `${JSON.stringify(results, undefined, 2)}\n`);
  writeFileSync(join(here, "results.svg"), await plot(results));
  writeFileSync(
    readme,
    readFileSync(readme, "utf8").replace(region, (_, start, end) => `${start}${table}${end}`),
  );
}

function toMarkdown({ date, machine, answers, figures }: Results): string {
  const rows = [
    ["work", "callers", "Investor Records", "p99", "beside", "", "p99", "ratio", "to reach"],
    ...answers.map((answer) => {
      const { title, callers, measure, other, ours, others, ratio, target, isMet } = answer;
      const ms = (value: number) => `${value.toFixed(2)} ms`;
      const show = (value: number) => (measure === "rate" ? `${whole(value)}/s` : ms(value));
      const goal =
        target === undefined
          ? ""
          : `${measure === "rate" ? "≥" : "≤"} ${target} ${isMet ? "✓" : "✗"}`;
      return [
        title,
        String(callers),
        show(ours[measure]),
        ms(ours.p99),
        other,
        show(others[measure]),
        ms(others.p99),
        ratio.toFixed(2),
        goal,
      ];
    }),
  ];
  const more = [
    ["figure", "", "to reach"],
    ...figures.map(({ title, value, unit, limit, least }) => [
      title,
      `${figure(value)} ${unit}`,
      limit !== undefined
        ? `≤ ${figure(limit)} ${value <= limit ? "✓" : "✗"}`
        : least !== undefined
          ? `≥ ${figure(least)} ${value >= least ? "✓" : "✗"}`
          : "",
    ]),
  ];
  return `Measured on ${date}: ${machine}; load, servers and database share it.\n\n${align(rows)}\n\n${align(more)}\n`;
}

function align(rows: string[][]): string {
  const [head = [], ...body] = rows;
  const widths = head.map((_, column) =>
    Math.max(3, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (row: string[]) =>
    `| ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join(" | ")} |`;
  return [line(head), line(widths.map((width) => "-".repeat(width))), ...body.map(line)].join("\n");
}

function figure(value: number): string {
  return value < 100 ? value.toFixed(1) : whole(value);
}

function whole(value: number): string {
  return Math.round(value).toLocaleString("en");
}
