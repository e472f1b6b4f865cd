import { it } from "vitest";
import { hasTool } from "../support/tools.ts";
import { exampleTimeoutMs, tryExample } from "./example.ts";

const title = "%s: the example runs as printed, and ends at its deadline";

it.each(["TypeScript with grpc-js", "TypeScript with Connect"])(
  title,
  tryExample,
  exampleTimeoutMs,
);

it.skipIf(!hasTool("python3", ["--version"])).each(["Python"])(title, tryExample, exampleTimeoutMs);

it.skipIf(!hasTool("go", ["version"])).each(["Go"])(title, tryExample, exampleTimeoutMs);
