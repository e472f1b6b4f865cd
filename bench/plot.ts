import { parse, View } from "vega";
import { compile, type TopLevelSpec } from "vega-lite";
import type { Results } from "./report.ts";

/** The results as an SVG: how many times as fast as each peer, and how it grows. */
export async function plot({ date, machine, answers, growth }: Results): Promise<string> {
  const ratios = answers
    .filter(({ measure, other }) => measure === "rate" && !other.startsWith("bare"))
    .map(({ title, other, ratio, target }) => ({
      what: `${title}, beside ${other}`,
      ratio,
      target,
    }));
  const byCallers = growth.filter(({ store, operation, records }) => {
    const ofStore = growth.filter((each) => each.store === store);
    return operation !== "page N" && records === Math.max(...ofStore.map((each) => each.records));
  });
  const spec: TopLevelSpec = {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    background: "white",
    title: { text: "Investor Records", subtitle: [`${date}, ${machine}`] },
    vconcat: [
      {
        title: "times the throughput of each peer (tick: to reach)",
        width: 500,
        data: { values: ratios },
        encoding: {
          y: { field: "what", type: "nominal", sort: null, title: null, axis: { labelLimit: 0 } },
        },
        layer: [
          { mark: "bar", encoding: { x: { field: "ratio", type: "quantitative", title: null } } },
          {
            mark: { type: "tick", color: "black", thickness: 2 },
            encoding: { x: { field: "target", type: "quantitative" } },
          },
        ],
      },
      {
        title: "calls a second by callers",
        width: 500,
        height: 220,
        data: {
          values: byCallers.map((each) => ({ ...each, what: `${each.operation}, ${each.store}` })),
        },
        mark: { type: "line", point: true },
        encoding: {
          x: {
            field: "callers",
            type: "quantitative",
            scale: { type: "log", base: 2 },
            title: "callers",
          },
          y: { field: "rate", type: "quantitative", title: null },
          color: { field: "what", type: "nominal", title: null },
        },
      },
    ],
  };
  return new View(parse(compile(spec).spec)).toSVG();
}
