import { X509Certificate } from "node:crypto";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Certificate } from "mkcert";
import { expect, it, onTestFinished, vi } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { createAuthority, writeServerFlags } from "../support/certificates.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";
import { waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";

it.each([
  ["gRPC", "before the notice", -70],
  ["gRPC", "within the last minute", -40],
  ["Connect", "within the last minute", -40],
])(
  "a client in Go by %s whose certificate is renewed %s goes on without a failed call",
  needs("Go"),
  async (protocol, _, renewedAt) => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const clients = await createAuthority("Clients");
    const { grpcPort, httpPort } = await startInProcess({
      ...(await writeServerFlags(folder, authority)),
      "--tls-client-ca": temporaryFile(clients.ca),
    });
    const file = join(folder, "client.pem");
    // Both are signed before the clock of the service is set, which is not that of OpenSSL.
    const first = await clients.sign("backend.example", 1);
    const second = await clients.sign("backend.example", 2);
    const write = ({ cert, key }: Certificate) => {
      writeFileSync(join(folder, "next.pem"), cert + key);
      renameSync(join(folder, "next.pem"), file);
    };
    write(first);
    const endsAt = new X509Certificate(first.cert).validToDate.getTime();
    vi.useFakeTimers({ toFake: ["Date"], now: endsAt - 80_000 });
    onTestFinished(() => void vi.useRealTimers());
    const target = protocol === "gRPC" ? `127.0.0.1:${grpcPort}` : `https://localhost:${httpPort}`;
    const args = [protocol === "gRPC" ? "grpc" : "connect", target, temporaryFile("{}")];
    const callers = startCallers([...buildGo(folder), ...args, temporaryFile(authority.ca), file]);
    const { input, created, failures, finished } = callers;
    const feed = setInterval(() => input.write(toLine(aCreate())), 2);
    onTestFinished(() => clearInterval(feed));
    for (let seconds = -80; seconds < 10; seconds += 5) {
      if (seconds === renewedAt) write(second);
      vi.setSystemTime(endsAt + seconds * 1_000);
      const before = created.length;
      // Longer than between two looks at the ages of connections.
      const until = performance.now() + 700;
      await waitFor(() => performance.now() > until && created.length > before + 20);
    }
    clearInterval(feed);
    input.end();
    await finished;
    expect(failures).toEqual([]);
  },
);
