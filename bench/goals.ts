import { toTitle } from "./race.ts";
import type { Results } from "./report.ts";
import { show, toTable } from "./table.ts";

const measures = {
  rate: { title: "calls a second", is: "at least" },
  p50: { title: "time of a call", is: "at most" },
  cpu: { title: "CPU of a call", is: "at most" },
} as const;

/** Holds what was measured against what it has to be. */
export function judge({ outcomes, figures }: Results): { table: string; isMet: boolean } {
  const ratios = outcomes.flatMap((outcome) =>
    outcome.standings.flatMap(({ name, ratios, goal }) => {
      if (goal === undefined) return [];
      const { title, is } = measures[goal.measure];
      const callers = outcome.callers === 1 ? "a lone caller" : `${show(outcome.callers)} callers`;
      const value = ratios[goal.measure];
      const who = `${toTitle(outcome)}, ${callers}`;
      return { title: `${who}: ${title}, × ${name}`, value, unit: "×", goal: { ...goal, is } };
    }),
  );
  let isMet = true;
  const rows = [...ratios, ...figures].flatMap(({ title, value, unit, goal }) => {
    if (goal === undefined) return [];
    const { is, must, aim } = goal;
    const holds = (limit: number) => (is === "at least" ? value >= limit : value <= limit);
    if (!holds(must)) isMet = false;
    const verdict = holds(aim) ? "aim met" : holds(must) ? "met" : "MISSED";
    return [[title, show(value, ` ${unit}`), `${is} ${must}`, `${aim}`, verdict]];
  });
  return { table: toTable([["figure", "measured", "must", "aim", ""], ...rows]), isMet };
}
