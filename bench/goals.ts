import type { Results } from "./report.ts";
import { show, toTable } from "./table.ts";

const measures = {
  rate: { title: "calls a second", is: "at least" },
  p50: { title: "time of a call", is: "at most" },
  cpu: { title: "CPU of a call", is: "at most" },
} as const;

/** Holds what was measured against what it has to be. */
export function judge({ outcomes, figures }: Results): { table: string; isMet: boolean } {
  const ratios = outcomes.flatMap(({ title, standings }) =>
    standings.flatMap(({ name, ratios, goals }) =>
      goals.map(({ measure, ...goal }) => ({
        title: `${title}: ${measures[measure].title}, × ${name}`,
        value: ratios[measure],
        unit: "×",
        goal: { ...goal, is: measures[measure].is },
      })),
    ),
  );
  let isMet = true;
  const rows = [...ratios, ...figures].flatMap(({ title, value, unit, goal }) => {
    if (goal === undefined) return [];
    const { is, must, aim } = goal;
    const holds = (limit: number) => (is === "at least" ? value >= limit : value <= limit);
    const isMissed = must !== undefined && !holds(must);
    if (isMissed) isMet = false;
    const verdict = isMissed ? "MISSED" : must !== undefined ? "ok" : "";
    const limit = (each: number | undefined) => (each === undefined ? "" : `${is} ${each}`);
    return [
      [title, show(value, ` ${unit}`), limit(must), verdict, limit(aim), holds(aim) ? "ok" : ""],
    ];
  });
  return { table: toTable([["figure", "measured", "must", "", "aim", ""], ...rows]), isMet };
}
