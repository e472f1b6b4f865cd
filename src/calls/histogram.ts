import type { Metric, Registry } from "prom-client";

/** What a {@link createHistogram histogram} shows. */
export interface HistogramOptions {
  name: string;
  help: string;
  /** Upper bounds of its buckets, ascending. */
  bounds: readonly number[];
  labelNames: readonly string[];
  registry: Registry;
}

interface Series {
  readonly labels: Record<string, string>;
  readonly counts: number[];
  sum: number;
}

/** Counts a value under the values of its labels, in the order of their names. */
export type Observe = (value: number, ...labels: string[]) => void;

/**
 * Makes a histogram of Prometheus. That of prom-client makes texts of all labels and of the
 * bucket at every observation, which took a twentieth of the time of a call.
 */
export function createHistogram(options: HistogramOptions): Observe {
  const { name, help, bounds, labelNames, registry } = options;
  const all = new Map<string, Series>();

  const toValues = ({ labels, counts, sum }: Series) => {
    let count = 0;
    const buckets = [...bounds, "+Inf"].map((le, i) => {
      count += counts[i] ?? 0;
      return { metricName: `${name}_bucket`, labels: { le, ...labels }, value: count };
    });
    return [
      ...buckets,
      { metricName: `${name}_sum`, labels, value: sum },
      { metricName: `${name}_count`, labels, value: count },
    ];
  };
  // A registry asks no more than this of a metric to show it.
  const metric = {
    name,
    get: async () => ({
      name,
      help,
      type: "histogram",
      values: [...all.values()].flatMap(toValues),
    }),
  };
  registry.registerMetric(metric as unknown as Metric);

  function begin(key: string, values: string[]): Series {
    const labels = Object.fromEntries(labelNames.map((label, i) => [label, values[i] ?? ""]));
    const series = { labels, counts: Array<number>(bounds.length + 1).fill(0), sum: 0 };
    all.set(key, series);
    return series;
  }

  return (value, ...labels) => {
    const key = labels.join();
    const series = all.get(key) ?? begin(key, labels);
    let bucket = 0;
    while (value > (bounds[bucket] ?? Number.POSITIVE_INFINITY)) bucket += 1;
    series.counts[bucket] = (series.counts[bucket] ?? 0) + 1;
    series.sum += value;
  };
}
