import { toTitle } from "./race.ts";
import type { Figure, Results } from "./report.ts";
import { show, toTable } from "./table.ts";

/** What a ratio is of, unless it is of calls a second, and whether the goal is the least or the most. */
const measures = {
  rate: { title: "", is: "at least" },
  p50: { title: "time ", is: "at most" },
  cpu: { title: "CPU ", is: "at most" },
} as const;

const signs = { "at least": "≥", "at most": "≤" };

/** Holds what was measured against what it has to be; of neighbours, the table has what is missed. */
export function judge({ outcomes, figures }: Results): { table: string; isMet: boolean } {
  const ratios = outcomes.flatMap((outcome) =>
    outcome.standings.flatMap(({ name, ratios, goal }) => {
      if (goal === undefined) return [];
      const { title, is } = measures[goal.measure];
      const callers = outcome.callers === 1 ? "1 caller" : `${show(outcome.callers)} callers`;
      const value = ratios[goal.measure];
      const who = `${toTitle(outcome)}, ${callers}`;
      return { title: `${who}: ${title}× ${name}`, value, unit: "×", goal: { ...goal, is } };
    }),
  );
  let isMet = true;
  const rows = [...ratios, ...figures].flatMap(({ title, value, unit, goal, cell }: Figure) => {
    if (goal === undefined) return [];
    const { is, must, aim } = goal;
    const holds = (limit: number) => (is === "at least" ? value >= limit : value <= limit);
    if (!holds(must)) isMet = false;
    else if (cell) return [];
    const verdict = holds(aim) ? "aim met" : holds(must) ? "met" : "MISSED";
    return [[title, show(value, ` ${unit}`), `${signs[is]} ${must}`, `${aim}`, verdict]];
  });
  return { table: toTable([["figure", "measured", "must", "aim", ""], ...rows]), isMet };
}
