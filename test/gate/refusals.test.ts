/** What clients learn that are refused while they upload 10 MB at 100 KB a second. */
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, it, type TestOptions } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { root } from "../support/clone.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const execute = promisify(execFile);
const count = 10;
const token = "t0ken-of-the-orders";
const callers = join(root, "test/support/callers");

/** A program with its arguments, which uploads as often as asked and prints the statuses as JSON. */
type Command = (url: string, token: string, ca: string, count: string) => [string, ...string[]];

const curl: Command = (url, token, ca, count) => {
  const credentials = token ? `-H "Authorization: Bearer ${token}"` : "";
  const upload =
    `head -c 10000000 /dev/zero | curl -s -o /dev/null -w '%{http_code}\\n' --limit-rate 100K --cacert ${ca} ` +
    `-H 'Content-Type: application/json' -H 'Expect:' ${credentials} --data-binary @- ${url}`;
  const all = `for i in $(seq ${count}); do (${upload}) & done; wait`;
  return ["sh", "-c", `(${all}) | paste -sd, | sed 's/^/[/; s/$/]/'`];
};

const clients: [name: string, command: Command, options: TestOptions][] = [
  ["curl", curl, needs("curl")],
  [
    "Python's http.client",
    (...args) => ["python3", join(callers, "upload/upload.py"), ...args],
    needs("Python"),
  ],
  ["Go", (...args) => ["go", "-C", callers, "run", "./upload", ...args], needs("Go")],
  [
    "Java's HttpClient",
    (...args) => ["java", join(callers, "upload/Upload.java"), ...args],
    needs("Java"),
  ],
];

for (const [name, command, options] of clients) {
  it(
    `${name} is told of a refusal, each of ten times, over HTTP/1.1 and TLS`,
    options,
    async () => {
      const tokens = temporaryFile(`orders ${token}\n`);
      const authority = await createAuthority();
      const folder = temporaryFolder();
      const tls = await writeServerFiles(folder, authority);
      const ca = join(folder, "authority.pem");
      writeFileSync(ca, authority.ca);
      const plain = await startService({ AUTH_TOKENS_FILE: tokens });
      const encrypted = await startService({ AUTH_TOKENS_FILE: tokens, ...tls });
      const cases = {
        "401 over HTTP/1.1": [`http://localhost:${plain.port}`, ""],
        "413 over HTTP/1.1": [`http://localhost:${plain.port}`, token],
        "413 over TLS": [`https://localhost:${encrypted.port}`, token],
      };
      const seen = Object.entries(cases).map(async ([name, [url = "", token = ""]]) => {
        const [program, ...args] = command(`${url}/v1/investors`, token, ca, String(count));
        const { stdout } = await execute(program, args);
        return [name, JSON.parse(stdout)];
      });
      expect(Object.fromEntries(await Promise.all(seen))).toEqual({
        "401 over HTTP/1.1": Array(count).fill(401),
        "413 over HTTP/1.1": Array(count).fill(413),
        "413 over TLS": Array(count).fill(413),
      });
    },
  );
}
