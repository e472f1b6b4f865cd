import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, it } from "vitest";
import { copyClone } from "../support/clone.ts";
import { temporaryFolder } from "../support/folder.ts";
import { pages, readBlocks } from "../support/markdown.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { anyPort, hasEnded, runGroup, waitFor } from "../support/service.ts";
import { freePort } from "../support/tcp.ts";
import { needs } from "../support/tools.ts";

const execute = promisify(execFile);

/** How bash runs a script that ends at the first failure. */
const strictly = ["-euo", "pipefail", "-c"];

/** The database that the pages name. */
const database = "mongodb://user:password@db1,db2,db3/investors?replicaSet=rs0";

/** A clone of the repository after `npm ci`, in which the commands of a page run in turn. */
function createClone(mongoUrl: string) {
  const folder = temporaryFolder();
  copyClone(folder);
  // An error is a failure, as for people who look at what they get.
  writeFileSync(join(folder, ".curlrc"), "silent\nshow-error\nfail-with-body\n");
  writeFileSync(join(folder, ".exports"), "");
  const env = {
    ...process.env,
    CURL_HOME: folder,
    npm_config_cache: join(folder, ".npm"),
    npm_config_update_notifier: "false",
    ...anyPort,
  };
  let port = "8080";
  let stop = async () => {};

  /** What stands on the page, for the ports and the database that there are. */
  function toScript(text: string, after = ""): string {
    const steps = text
      .replaceAll(/\bnpm ci( && |\n|$)/g, "")
      .replaceAll(database, mongoUrl)
      .replaceAll("localhost:8080", `localhost:${port}`);
    if (/\bnpm (ci|i|install|add)\b/.test(steps)) throw new Error(`it changes the tools: ${text}`);
    return `. ${folder}/.exports\n${steps}\n${after}`;
  }

  return {
    /** Runs commands to their end, and returns what they print. */
    async run(text: string): Promise<string> {
      const script = toScript(text, `export -p > ${folder}/.exports`);
      return (await execute("bash", [...strictly, script], { cwd: folder, env })).stdout;
    },
    /** Runs commands whose last one starts the service, instead of the one before. */
    async start(text: string): Promise<void> {
      await stop();
      const options = { cwd: folder, env };
      const { child, output, exited } = runGroup("bash", [...strictly, toScript(text)], options);
      const [, pid, found = ""] = await waitFor(async () => {
        if (hasEnded(child)) throw new Error(`it ended: ${output()}`);
        return /"pid":(\d+).*"serving .* on https?:.*:(\d+)"/.exec(output()) ?? undefined;
      });
      port = found;
      stop = async () => {
        process.kill(Number(pid), "SIGTERM");
        expect(await exited, output()).toBe(0);
      };
    },
    stop: () => stop(),
  };
}

/**
 * Runs the commands of a page in turn, each block twice in a row, the second time with what the first
 * left behind, and compares what they print.
 */
async function runBlocks(blocks: ReturnType<typeof readBlocks>, mongoUrl = ""): Promise<void> {
  const clone = createClone(mongoUrl);
  const starts = (text: string) => /\bnpm start\b/.test(text);
  if (!starts(blocks[0]?.text ?? "")) await clone.start("npm start");
  for (const { text, output } of blocks.flatMap((block) => [block, block])) {
    if (starts(text)) {
      await clone.start(text);
      continue;
    }
    const printed = await clone.run(text);
    if (output?.language === "json") {
      expect(JSON.parse(printed), text).toEqual(JSON.parse(output.text));
    } else if (output !== undefined) {
      expect(printed.trim(), text).toBe(output.text);
    }
  }
  await clone.stop();
}

for (const page of pages) {
  const blocks = readBlocks(page).filter(({ language, test }) => language === "sh" && test === "");
  const has = (text: string) => blocks.some((block) => block.text.includes(text));
  if (blocks.length === 0) continue;
  const options = needs(...(["curl", "grpcurl", "openssl"] as const).filter(has));
  const name = `the commands of ${page} run twice in a row, and print what it says`;
  if (has(database)) {
    await describeWithMongo("on MongoDB", "set of one", (mongo) =>
      it(name, options, () => runBlocks(blocks, mongo.url())),
    );
  } else it(name, options, () => runBlocks(blocks));
}

it("MongoDB serves without Docker, as docs/install.md says", needs("mongosh"), async () => {
  const blocks = readBlocks("docs/install.md").filter(({ test }) => /commands/.test(test));
  const port = await freePort();
  const [text = ""] = blocks.map((block) =>
    block.text
      .replace(/(?<=^| )mongo(d|sh)(?= )/gm, `$& --port ${port}`)
      .replace("localhost/", `localhost:${port}/`),
  );
  const clone = createClone("");
  try {
    await clone.start(text);
    expect(await clone.run("curl localhost:8080/v1/investors")).toBe("[]");
    await clone.stop();
  } finally {
    await clone.run("mongod --shutdown --dbpath data/mongodb");
  }
});

it("grpcurl calls with TLS and a token, as examples/README.md says, the service of docs/operation.md", {
  ...needs("grpcurl", "openssl", "curl"),
}, async () => {
  const [start = "", token = ""] = readBlocks("docs/operation.md")
    .map(({ text }) => text)
    .filter((text) => /^(mkdir -p data|TOKEN=)/.test(text));
  const [block] = readBlocks("examples/README.md").filter(({ test }) => /commands/.test(test));
  const clone = createClone("");
  await clone.start(start);
  await clone.run(`export ${token}\ncp data/server.crt ca.crt`);
  // Where it is a CA, rustls does not take it for a server's.
  const extension = "openssl x509 -in ca.crt -noout -ext basicConstraints";
  expect(await clone.run(extension)).toMatch(/critical\s+CA:FALSE/);
  for (let run = 0; run < 2; run++) expect(await clone.run(block?.text ?? "false")).toBe("{}\n");
  await clone.stop();
});
