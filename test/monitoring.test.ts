import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { createAuthority, getOverTls, writeServerFiles } from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { findAll } from "./support/markdown.ts";
import { aCreate } from "./support/records.ts";
import { startService } from "./support/service.ts";
import { needs } from "./support/tools.ts";

/** What Prometheus adds to each sample. */
const targetLabels = ["instance", "job"];

/** The labels of the metrics of a service, by name. */
async function readMetrics(): Promise<Map<string, Set<string>>> {
  const authority = await createAuthority();
  const tls = { ca: authority.ca };
  const files = await writeServerFiles(temporaryFolder(), authority);
  const service = await startService(files);
  const client = clientsOf(service, { tls }).gRPC;
  const { id } = await client.createInvestor(aCreate());
  await client.getInvestor({ id });
  await failureOf(client.createInvestor({}));
  await client.listInvestors({});

  const text = await getOverTls(service, "/metrics", tls);
  // Such names are for counters (https://prometheus.io/docs/practices/naming).
  expect(findAll(/^# TYPE (\w+_total) gauge$/gm, text)).toEqual([]);
  const metrics = new Map<string, Set<string>>();
  for (const [, name = "", labels = ""] of text.matchAll(/^(\w+)(?:\{(.*)\})? /gm)) {
    const known = metrics.get(name) ?? [];
    metrics.set(name, new Set([...known, ...findAll(/(\w+)="/g, labels)]));
  }
  return metrics;
}

/** What others say of backups: kube-state-metrics, and what node_exporter reads in a file of ours. */
function addBackups(metrics: Map<string, Set<string>>): void {
  const unit = readFileSync("deploy/investor-records-backup.service", "utf8");
  for (const name of findAll(/ "\+(\w+) %%s" /g, unit)) metrics.set(name, new Set());
  const labels = new Set(["cronjob", "namespace"]);
  metrics.set("kube_cronjob_status_last_successful_time", labels);
}

/** The queries of the rules and the dashboard, each with the labels that its texts name. */
function readQueries(): string[] {
  const [, ...alerts] = readFileSync("deploy/alerts.yaml", "utf8").split("- alert: ");
  const dashboard = JSON.parse(readFileSync("deploy/dashboard.json", "utf8"));
  const panels: { targets: { expr: string; legendFormat: string }[] }[] = dashboard.panels;
  const shown = panels.flatMap(({ targets }) =>
    targets.map(({ expr, legendFormat }) => `${expr}\n${legendFormat}`),
  );
  const [, { query }] = dashboard.templating.list;
  return [...alerts, ...shown, query];
}

it("the rules and the dashboard name metrics and labels that the service has", async () => {
  const metrics = await readMetrics();
  addBackups(metrics);
  const queries = readQueries();
  expect(queries.length).toBeGreaterThan(20);
  for (const query of queries) {
    const names = findAll(/\b((?:investor_records|kube|nodejs|process)_\w+)/g, query);
    expect(names, query).not.toEqual([]);
    expect([...metrics.keys()], query).toEqual(expect.arrayContaining(names));
    const known = names.flatMap((name) => [...(metrics.get(name) ?? [])]);
    const lists = findAll(/\b(?:by|on) \(([^)]*)\)/g, query);
    const used = [
      ...lists.flatMap((list) => list.split(", ")),
      ...findAll(/(\w+)=~?"/g, query),
      ...findAll(/\{\{ ?(?:\$labels\.)?(\w+) ?\}\}/g, query),
    ];
    expect([...targetLabels, ...known], query).toEqual(expect.arrayContaining(used));
  }
});

describe("the alerting rules", needs("promtool"), () => {
  it.each([
    "check rules deploy/alerts.yaml",
    "check config --syntax-only deploy/prometheus.yaml",
    "test rules test/alerts.test.yaml",
    "test rules test/alerts-of-backups.test.yaml",
  ])("pass promtool %s", (command) => {
    const { status, output } = spawnSync("promtool", command.split(" "), { encoding: "utf8" });
    expect(status, output.join("")).toBe(0);
  });
});
