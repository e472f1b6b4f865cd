/** What clients learn that are refused while they upload 10 MB at 100 KB a second. */
import { execFile } from "node:child_process";
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
const javaFile = join(root, "test/support/callers/Upload.java");

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
  ["Java's HttpClient", (...args) => ["java", javaFile, ...args], needs("Java")],
];

for (const [name, command, options] of clients) {
  it(`${name} is told of each of ten refusals, in plain text and over TLS`, options, async () => {
    const tokens = temporaryFile(`orders ${token}\n`);
    const authority = await createAuthority();
    const tls = await writeServerFiles(temporaryFolder(), authority);
    const ca = temporaryFile(authority.ca);
    const plain = await startService({ AUTH_TOKENS_FILE: tokens });
    const encrypted = await startService({ AUTH_TOKENS_FILE: tokens, ...tls });
    const upload = async (url: string, token = "") => {
      const [program, ...args] = command(`${url}/v1/investors`, token, ca, String(count));
      return JSON.parse((await execute(program, args)).stdout);
    };
    const http = `http://localhost:${plain.port}`;
    const https = `https://localhost:${encrypted.port}`;
    const seen = [upload(http), upload(http, token), upload(https, token)];
    expect(await Promise.all(seen)).toEqual([401, 413, 413].map((each) => Array(count).fill(each)));
  });
}
