/** The proxies of deploy/, in front of the service. */
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:http2";
import { dirname, join } from "node:path";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, getOverTls, writeServerFiles } from "../support/certificates.ts";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { openCall, paths } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import { hasEnded, runGroup, startService, waitFor } from "../support/service.ts";
import { freePort } from "../support/tcp.ts";
import { needs } from "../support/tools.ts";

/** How each proxy is started with a configuration, and what that needs besides. */
const proxies = {
  caddy: {
    file: "Caddyfile",
    complete: (text: string, port: number) =>
      `{\nadmin off\nauto_https off\n}\n${text.replace("investors.example", `https://localhost:${port}`)}`,
    args: (file: string) => ["run", "--adapter", "caddyfile", "--config", file],
  },
  nginx: {
    file: "nginx.conf",
    complete: (text: string, port: number) => {
      const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
      const paths = temporary.map((name) => `${name}_temp_path ${name};`).join("\n");
      const server = text.replace("listen 443", `listen 127.0.0.1:${port}`);
      return `pid pid;\nevents { worker_connections 4096; }\nhttp {\naccess_log off;\n${paths}\n${server}}\n`;
    },
    args: (file: string) => {
      const daemon = ["-g", "daemon off;"];
      return ["-p", dirname(file), "-c", file, "-e", "stderr", ...daemon];
    },
  },
};

describe.each(Object.entries(proxies))("%s", (name, { file, complete, args }) => {
  it(
    "passes on every protocol, with its errors and whole lists",
    needs(name as "caddy" | "nginx"),
    async () => {
      const folder = temporaryFolder();
      const authority = await createAuthority();
      const { ca } = authority;
      const { TLS_CERT, TLS_KEY } = await writeServerFiles(folder, authority);
      const tokens = temporaryFile("caller t0ken-of-a-caller\n");
      const service = await startService({ AUTH_TOKENS_FILE: tokens });
      const port = await freePort();
      const text = readFileSync(join("deploy", file), "utf8")
        .replaceAll(/\S+tls\.crt/g, TLS_CERT)
        .replaceAll(/\S+tls\.key/g, TLS_KEY)
        .replaceAll(":8080", `:${service.port}`);
      const configuration = join(folder, file);
      writeFileSync(configuration, complete(text, port));
      const env = { PATH: process.env.PATH, HOME: folder, XDG_DATA_HOME: folder };
      const { child, output } = runGroup(name, args(configuration), { cwd: folder, env });
      await waitFor(async () => {
        if (hasEnded(child)) throw new Error(`it ended: ${output()}`);
        const health = getOverTls({ port }, "/healthz", { ca }).catch(() => "");
        return (await health).includes("alive");
      });

      const authorization = "Bearer t0ken-of-a-caller";
      for (const httpVersion of ["1.1", "2"] as const) {
        const options = { authorization, tls: { ca }, httpVersion };
        for (const client of Object.values(clientsOf({ port }, options))) {
          const { id } = await client.createInvestor(aCreate());
          expect(await client.getInvestor({ id })).toMatchObject({ id });
          const missing = await failureOf(client.getInvestor({ id: v7() }));
          expect(missing).toMatchObject({ reason: "INVESTOR_NOT_FOUND" });
        }
      }
      const headers = { authorization };
      const list = await getOverTls({ port }, "/v1/investors", { ca, headers });
      expect(JSON.parse(list)).toHaveLength(8);
      const refused = await getOverTls({ port }, "/v1/investors", { ca });
      expect(JSON.parse(refused)).toMatchObject({ status: 401, reason: "CREDENTIALS_MISSING" });

      // Strangers' health checks that do not end, of which a proxy can make a connection each.
      for (let i = 0; i < 10; i += 1) {
        const session = connect(`https://localhost:${port}`, { ca });
        session.on("error", () => {});
        onTestFinished(() => session.destroy());
        for (let n = 0; n < 110; n += 1) openCall(session, paths.check);
        await once(session, "remoteSettings");
      }
      const { gRPC: client } = clientsOf({ port }, { authorization, tls: { ca } });
      for (let i = 0; i < 20; i += 1) await client.createInvestor(aCreate());
    },
  );
});
