import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "./clone.ts";

/** The pages that people read, by their paths in the repository. */
export const pages = globSync("{,docs/,client/,examples/,bench/,test/,deploy/*/}*.md", {
  cwd: root,
}).toSorted();

/** The text of a page. */
export function readPage(page: string): string {
  return readFileSync(join(root, page), "utf8");
}

/** What the first group of a pattern is, at each place of a text where it matches. */
export function findAll(pattern: RegExp, text: string): string[] {
  return Array.from(text.matchAll(pattern), ([, group = ""]) => group);
}

/** A fenced block of a page. */
interface Block {
  language: string;
  /** What follows the language: the test that runs the block. */
  test: string;
  text: string;
  /** What it prints: the block that follows it with nothing between, unless it is another step. */
  output: Block | undefined;
}

/** The fenced blocks of a page, in order. */
export function readBlocks(page: string): Block[] {
  const fence = /^( *)```(\w*) ?(.*)\n([\s\S]*?)^\1```\n(?=(\n *```(?:json|text)\n)?)/gm;
  const matches = Array.from(readPage(page).matchAll(fence));
  const blocks = matches.map(([, indent = "", language = "", test = "", text = ""]): Block => {
    return { language, test, text: text.replaceAll(`\n${indent}`, "\n").trim(), output: undefined };
  });
  for (const [i, block] of blocks.entries()) {
    if (matches[i]?.[5] !== undefined) block.output = blocks[i + 1];
  }
  return blocks;
}
