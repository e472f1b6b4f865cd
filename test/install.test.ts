/** What README's first command does where the machine lacks something, and the image's health check. */
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { expect, it, onTestFinished } from "vitest";
import { root } from "./support/clone.ts";
import { temporaryFolder } from "./support/folder.ts";
import { runGroup } from "./support/service.ts";
import { needs } from "./support/tools.ts";

it("npm start says in one line what Node.js lacks without libatomic", async () => {
  const folder = temporaryFolder();
  writeFileSync(join(folder, "libatomic.so.1"), "");
  // As npm runs it, which may need the same library itself.
  const script = JSON.parse(readFileSync(join(root, "package.json"), "utf8")).scripts.start;
  const env = { PATH: process.env.PATH, LD_LIBRARY_PATH: folder };
  const { exited, output } = runGroup("sh", ["-c", script], { cwd: root, env });
  expect(await exited).toBe(1);
  expect(output()).toBe(
    "error: Node.js needs libatomic.so.1: install libatomic1 (Debian, Ubuntu) or libatomic (Fedora, RHEL)\n",
  );
});

it.each([
  ["", "127.0.0.1"],
  ["0.0.0.0", "127.0.0.1"],
  ["127.0.0.2", "127.0.0.2"],
  ["::1", "::1"],
  ["::", "127.0.0.1"],
  ["::", "::1"],
])(
  "the health check asks the first port of HOST=%s on %s",
  needs("IPv6"),
  async (HOST, address) => {
    const server = createServer((req, res) =>
      res.writeHead(req.url === "/readyz" ? 200 : 404).end(),
    );
    onTestFinished(() => void server.close());
    await once(server.listen(0, address), "listening");
    const { port } = server.address() as AddressInfo;
    const env = { PATH: process.env.PATH, HOST, PORT: `${port},1` };
    const check = () =>
      runGroup(process.execPath, ["deploy/healthcheck.js"], { cwd: root, env }).exited;
    expect(await check()).toBe(0);
    server.close();
    expect(await check()).toBe(1);
  },
);
