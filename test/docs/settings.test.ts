import { expect, it } from "vitest";
import { temporaryFolder } from "../support/folder.ts";
import { run } from "../support/service.ts";
import { readPage } from "./pages.ts";

it("docs/operation.md has the settings of --help, in its order, with their defaults", async () => {
  const help = run(["serve", "--help"], {}, temporaryFolder());
  await help.exited;
  const settings = help
    .output()
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
