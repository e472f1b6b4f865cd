import { existsSync, statSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { describe, expect, it } from "vitest";
import manifest from "../../package.json" with { type: "json" };
import { root } from "../examples/clone.ts";
import { pages, readBlocks, readPage } from "./pages.ts";

/** The fragments of a page's headings, as GitHub makes them. */
function anchorsOf(page: string): string[] {
  return Array.from(readPage(page).matchAll(/^#+ (.*)$/gm), ([, title = ""]) =>
    title
      .toLowerCase()
      .replaceAll(/[^\w\- ]/g, "")
      .replaceAll(" ", "-"),
  );
}

describe.each(pages)("%s", (page) => {
  const text = readPage(page);

  it("links to what is there", () => {
    const links = Array.from(text.matchAll(/\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)/g));
    for (const [link, path = "", anchor] of links) {
      const target = path === "" ? page : normalize(join(dirname(page), path));
      expect(existsSync(join(root, target)), link).toBe(true);
      if (anchor === undefined) continue;
      expect(statSync(join(root, target)).isFile(), link).toBe(true);
      expect(anchorsOf(target), link).toContain(anchor);
    }
  });

  it("names scripts of npm that are there", () => {
    for (const [command, name = ""] of text.matchAll(
      /npm (?:run )?(start|test|(?<=run )[\w-]+)/g,
    )) {
      expect(Object.keys(manifest.scripts), command).toContain(name);
    }
  });

  it("names a test for each block of commands that it does not run", () => {
    for (const { language, test, text } of readBlocks(page)) {
      expect(language, text).not.toBe("");
      if (test !== "") expect(existsSync(join(root, test)), test).toBe(true);
    }
  });
});
