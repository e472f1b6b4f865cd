import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { describe, expect, it } from "vitest";

describe.each([
  ["docs/guarantees.md", 15],
  ["docs/security.md", 30],
])("%s", (name, least) => {
  const file = resolve(import.meta.dirname, "../..", name);
  const rows = readFileSync(file, "utf8")
    .split(/^## /m)
    .filter((section) => !section.startsWith("Who may"))
    .flatMap((section) => section.split("\n"))
    .filter((line) => line.startsWith("|"))
    .map((line) => line.split("|").map((cell) => cell.trim()))
    .filter(([, first]) => first !== undefined && !/^-+$/.test(first));
  const references = rows.flatMap((cells) =>
    Array.from(
      cells.at(-2)?.matchAll(/\[[\w-]+\]\(([^)]+)\): "([^"]+)"/g) ?? [],
      ([, ...each]) => each,
    ),
  );

  it("names a test for each promise", () => {
    expect(references.length).toBeGreaterThan(least);
    for (const cells of rows)
      expect(cells.at(-2)).toMatch(/^\[.*\]\(.*\): ".*"$|^test$|^both histories$/);
  });

  it.each(references)("names a test that is there: %s, %s", (path = "", title = "") => {
    const source = readFileSync(resolve(file, "..", path), "utf8");
    const titles = Array.from(
      source.matchAll(/(?:\bit|\))\(\s*"([^"]*)"/g),
      ([, each = ""]) => each,
    );
    expect(titles.map((each) => each.replaceAll(/%\w/g, "…"))).toContain(title);
  });
});
