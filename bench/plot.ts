import { parse, View } from "vega";
import { compile, type TopLevelSpec } from "vega-lite";
import { type Outcome, toTitle } from "./race.ts";

/** Calls a second of the service and of its peers, as an SVG. */
export async function plot(machine: string, outcomes: Outcome[]): Promise<string> {
  const shown = outcomes.filter(({ api, callers }) => callers > 1 && api !== "connect");
  const bars = shown.map((outcome): object => {
    const values = outcome.standings
      .filter(({ name }) => !name.startsWith("bare"))
      .map(({ name, rate }, i) => ({ name, rate, isOurs: i === 0 }));
    return {
      title: {
        text: `${toTitle(outcome)}, ${outcome.callers} callers`,
        anchor: "start",
        fontSize: 12,
      },
      width: 300,
      data: { values },
      encoding: {
        y: { field: "name", sort: null, title: null, axis: { ticks: false, domain: false } },
        x: { field: "rate", type: "quantitative", axis: null },
      },
      layer: [
        {
          mark: "bar",
          encoding: {
            color: {
              field: "isOurs",
              scale: { domain: [true, false], range: ["#2563eb", "#a3a3a3"] },
              legend: null,
            },
          },
        },
        {
          mark: { type: "text", align: "left", dx: 4 },
          encoding: { text: { field: "rate", format: ",.0f" } },
        },
      ],
    };
  });
  const spec = {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    background: "white",
    padding: 12,
    title: { text: "Calls a second", subtitle: machine, anchor: "start", offset: 12 },
    concat: bars,
    columns: 2,
    spacing: { row: 16, column: 48 },
    config: { view: { stroke: null } },
  } as TopLevelSpec;
  return new View(parse(compile(spec).spec)).toSVG();
}
