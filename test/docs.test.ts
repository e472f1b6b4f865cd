import { existsSync, globSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { ListInvestorsRequestSchema } from "../gen/investor/v1/investor_pb.js";
import { nameOf, overloaded } from "../src/failures.ts";
import { maxTextLength } from "../src/investor/investor.ts";
import { maxPageBytes, toRange } from "../src/investor/paging.ts";
import { limits } from "../src/limits.ts";
import { settings } from "../src/settings/config.ts";
import { reloadIntervalMs } from "../src/settings/reloaded-files.ts";
import { failures } from "./service/failures.ts";
import { root } from "./support/clone.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFolder } from "./support/folder.ts";
import { findAll, pages, readBlocks, readPage } from "./support/markdown.ts";
import { run } from "./support/service.ts";

/** The fragments of a page's headings, as GitHub makes them. */
function anchorsOf(page: string): string[] {
  return findAll(/^#+ (.*)$/gm, readPage(page)).map((title) =>
    title
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, "")
      .replaceAll(" ", "-"),
  );
}

it("the alerts link to sections of the pages", () => {
  const alerts = textOf("deploy/alerts.yaml");
  const links = Array.from(alerts.matchAll(/ runbook_url: (docs\/\w+\.md)#(.*)/g));
  expect(links).toHaveLength(alerts.split("- alert: ").length - 1);
  for (const [, page = "", anchor] of links) expect(anchorsOf(page)).toContain(anchor);
});

it("the pages link to what is there", () => {
  for (const page of pages) {
    // Released sections never change: what they link to may be elsewhere today.
    const [text = ""] = readPage(page).split(/^## \d/m);
    const links = text.matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)/g);
    for (const [link, path = "", anchor] of links) {
      const target = path === "" ? page : normalize(join(dirname(page), path));
      expect(existsSync(join(root, target)), `${page}: ${link}`).toBe(true);
      if (anchor === undefined) continue;
      expect(statSync(join(root, target)).isFile(), `${page}: ${link}`).toBe(true);
      expect(anchorsOf(target), `${page}: ${link}`).toContain(anchor);
    }
  }
});

it.each([
  ["docs/layout.md", ["src"]],
  ["docs/decisions.md", ["src", "test"]],
])("%s names files of %j as they are", (page, folders) => {
  const files = findAll(/`([\w/.-]+\.ts)`/g, readPage(page));
  expect(files.length).toBeGreaterThan(15);
  for (const file of files) {
    const paths = folders.map((folder) => join(root, folder, file));
    expect(paths.filter(existsSync), file).toHaveLength(1);
  }
});

it("docs/layout.md names the rooms of src", () => {
  const [, picture] = readPage("docs/layout.md").split("```");
  for (const entry of readdirSync(join(root, "src"), { withFileTypes: true })) {
    if (entry.isDirectory()) expect(picture).toMatch(new RegExp(`\\b${entry.name}\\b`));
  }
});

it("the pages name a test for each block that commands.test.ts does not run", () => {
  // Commands, and what others do with them or read.
  const commands = ["sh", "crontab"];
  const others = ["go", "ini", "java", "js", "json", "python", "text", "ts", "yaml"];
  for (const page of pages) {
    for (const { language, test, text } of readBlocks(page)) {
      expect([...commands, ...others], `${page}: ${text}`).toContain(language);
      if (language === "crontab") expect(test, text).not.toBe("");
      if (test !== "") expect(existsSync(join(root, test)), `${page}: ${test}`).toBe(true);
    }
  }
});

it("each block of commands for backups and upgrades is one chain, which ends at the first failure", () => {
  const blocks = pages.flatMap(readBlocks);
  const chains = blocks.filter(({ test }) => test === "test/gate/backups.test.ts");
  expect(chains.length).toBeGreaterThan(10);
  for (const { text } of chains) {
    const [, ...others] = text
      .replaceAll(/ +#.*$/gm, "")
      .replaceAll(/(?:\\|&&)\n/g, " ")
      .split("\n");
    expect(others, text).toEqual([]);
    expect(text.replaceAll(/'.*?'/gs, "").replaceAll("\\;", ""), text).not.toContain(";");
  }
});

it("the pages have no command that could fetch a package of ours from a registry", () => {
  for (const page of pages) expect(readPage(page), page).not.toMatch(/\bnpx (?!--no\b)/);
});

it("docs/operation.md has the settings of --help, in its order, with their defaults", async () => {
  const { exited, output } = run(["serve", "--help"], {}, temporaryFolder());
  await exited;
  const settings = output()
    .replaceAll(/\s+/g, " ")
    .split(/(?= --[a-z])/)
    .filter((option) => option.includes("env: "))
    .map((option) => [
      /--[\w-]+/.exec(option)?.[0],
      /default: "?([^",)]+)/.exec(option)?.[1] ?? "",
    ]);
  const rows = readPage("docs/operation.md").matchAll(/^\| `(--[\w-]+)` +\| (?:`(.*?)`)? +\|/gm);
  expect(Array.from(rows, ([, flag, fallback = ""]) => [flag, fallback])).toEqual(settings);
  expect(settings.length).toBeGreaterThan(15);
});

/** A limit as the page says it. */
function say([name, value]: [string, number]): string {
  if (name.endsWith("Bytes")) return `${value / 1024} KiB`;
  if (name.endsWith("Ms"))
    return value % 60_000 === 0 ? `${value / 60_000} min` : `${value / 1_000} s`;
  return value < 1 ? `${value * 8}/8` : value.toLocaleString("en");
}

it("docs/security.md has every limit, in its order, in at most ten rows", () => {
  const [, table = ""] = /## Limits\n[^|]*((?:\|.*\n)+)/.exec(readPage("docs/security.md")) ?? [];
  const rows = findAll(/^\|[^|]*\|(.*)\|$/gm, table).slice(2);
  const told = rows.flatMap(
    (row) => row.replaceAll(/`.*?`/g, "").match(/\d+(,\d{3})*(\/\d)?( (KiB|min|s)\b)?/g) ?? [],
  );
  expect(told).toEqual(Object.entries(limits).map(say));
  expect(rows.length).toBeLessThanOrEqual(10);
});

const textLimit = `at most ${maxTextLength} (characters|Unicode code points)`;
const [pageSize, maxPageSize] = [0, 1_000_000].map((size) =>
  toRange(create(ListInvestorsRequestSchema, { pageSize: size })).limit.toLocaleString("en"),
);

it.each([
  ["README.md", textLimit],
  ["README.md", `at most ${maxPageSize} records and ${Math.ceil(maxPageBytes / 2 ** 20)} MiB`],
  ["docs/calling.md", `the default is ${pageSize}`],
  ["docs/calling.md", `${limits.requestBytes / 1024} KiB at most`],
  ["docs/operation.md", `every ${reloadIntervalMs / 1_000} seconds`],
  ["proto/investor/v1/investor.proto", textLimit],
  ["proto/investor/v1/openapi.json", textLimit],
  ["proto/investor/v1/openapi.json", overloaded("calls in flight").message],
  ["proto/investor/v1/openapi.json", `at once within ${limits.unreadMs / 60_000} minutes`],
  ["proto/investor/v1/openapi.json", `the list takes ${limits.wholeListMs / 60_000} minutes`],
])("%s says: %s", (file, words) => {
  expect(readFileSync(join(root, file), "utf8")).toMatch(new RegExp(words, "i"));
});

// The statuses of REST are looked at where errors are sent: rest.test.ts.
it("docs/calling.md has every error with its code, and whether to retry the call", async () => {
  const rows = readPage("docs/calling.md").matchAll(
    /^\| `([A-Z_]+)` +\| `([A-Z_]+)` +\| \d+ +\| (.*?) *\|$/gm,
  );
  const told = Array.from(rows, ([, reason, code, advice = ""]) =>
    [reason, code, advice.startsWith("[retry](#retries)")].join(),
  );
  const errors = Object.values(failures).flat();
  const made = errors.map(async (error) => {
    const { reason, hasRetryDelay } = await failureOf(Promise.reject(error));
    return [reason, nameOf(error.code), hasRetryDelay].join();
  });
  const known = await Promise.all(made);
  expect(told.toSorted()).toEqual([...new Set(known)].toSorted());
});

/** The text of a section of a page, without its title. */
function sectionOf(page: string, title: string): string {
  const [, rest = ""] = readPage(page).split(`\n## ${title}\n`);
  return rest.split("\n## ")[0] ?? "";
}

/** The text of the files of the repository whose paths match. */
function textOf(pattern: string): string {
  const files = globSync(pattern, { cwd: root });
  return files.map((file) => readFileSync(join(root, file), "utf8")).join("\n");
}

/** The product's code, in which a text that goes on in the next line is one. */
const readSources = () => textOf("{src/**/*.ts,deploy/*.js}").replaceAll(/["`] \+\s*["`]/g, "");

it("docs/troubleshooting.md has messages of the product, in order", () => {
  const sources = readSources();
  const items = sectionOf("docs/troubleshooting.md", "Messages").match(/^- .*/gm) ?? [];
  expect(items.length).toBeGreaterThan(20);
  for (const item of items) {
    const [quoted = ""] = /^- `.*?`(, `.*?`)*(?=:)/.exec(item) ?? [];
    const messages = findAll(/`(.*?)`/g, quoted);
    expect(messages, item).not.toEqual([]);
    for (const part of messages.flatMap((each) => each.split("…"))) {
      expect(sources, item).toContain(part.trim());
    }
  }
  expect(items).toEqual(items.toSorted((one, other) => one.localeCompare(other, "en")));
});

it("docs/troubleshooting.md has every reason for which a connection is closed", () => {
  const [, union = ""] = /type EndReason =\s+([^;]*);/.exec(textOf("src/http/connection.ts")) ?? [];
  const reasons = findAll(/"(\w+)"/g, union);
  const [, items = ""] = sectionOf("docs/troubleshooting.md", "Closed connections").split(":\n\n");
  const told = findAll(/`([a-z\d_]+)`/g, items);
  expect(told.filter((each) => each !== "cause").toSorted()).toEqual(reasons.toSorted());
});

it("docs/operation.md has every metric, and no other", () => {
  const metricsIn = (text: string) => new Set(text.match(/\binvestor_records_\w+/g));
  const metrics = metricsIn(readSources());
  expect(metrics.size).toBeGreaterThan(10);
  expect(metricsIn(readPage("docs/operation.md"))).toEqual(metrics);
});

/** Names in the pages that are of other programs, or of a page's own commands. */
const foreign = [
  ...["--build-arg", "--dbpath", "--drop", "--format", "--mount", "--no", "--previous", "--rm"],
  ...["--shutdown", "--silent", "--tags", "CALLER", "HTTPS_PROXY", "MongoBulkWriteError"],
  ...["NODE_EXTRA_CA_CERTS", "NODE_USE_ENV_PROXY", "NotPrimaryOrSecondary", "allowHTTP1"],
  ...["baseUrl", "base_url", "createSecureServer", "createSsl", "insertMany", "language_override"],
  ...["moduleResolution", "packageExports", "tlsCertificateKeyFile"],
  "writeConcernMajorityJournalDefault",
];

it("the pages name no flag, variable, reason, metric or member that is not there", () => {
  const product = textOf(
    "{{src,client/src}/**/*.ts,{deploy,proto}/**/*.{js,json,proto,service,yaml},Dockerfile,package.json}",
  );
  const variables = settings.map(({ envVar = "" }) => envVar);
  const known = new Set([...variables, ...(product.match(/--[a-z][\w-]*|\w+/g) ?? [])]);
  const forms = [/--[a-z][\w-]*/, /[A-Z][A-Z_]{3,}/, /\w*[a-z][A-Z]\w*/, /[A-Za-z]\w*_\w+/];
  const name = forms.map(({ source }) => source).join("|");
  const names = new RegExp(`(?<![\\w./-])(${name})(?![\\w.])`, "g");
  for (const page of pages.filter((each) => /^(README|docs|client|examples|deploy)/.test(each))) {
    const prose = readPage(page).replaceAll(/^( *)```[\s\S]*?^\1```$/gm, "");
    const code = prose.match(/`[^`]+`/g) ?? [];
    const named = code.flatMap((text) => text.match(names) ?? []);
    const wrong = named.filter((each) => !known.has(each) && !foreign.includes(each));
    expect(wrong, page).toEqual([]);
  }
});
