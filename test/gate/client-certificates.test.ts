import { X509Certificate } from "node:crypto";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Certificate } from "mkcert";
import { expect, it, onTestFinished, vi } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { createAuthority, writeServerFlags } from "../support/certificates.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { startInProcess } from "../support/server.ts";
import { waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";

/** How long the first certificate is still valid when its client connects, in seconds. */
const leftSeconds = 20;

it.each([
  ["gRPC", "before half of its time is up", 15],
  ["gRPC", "later", 7],
  ["Connect", "later", 7],
])(
  "a client in Go by %s whose certificate is renewed %s goes on without a failed call",
  needs("Go"),
  async (protocol, _, secondsAtRenewal) => {
    const folder = temporaryFolder();
    const authority = await createAuthority();
    const clients = await createAuthority("Clients");
    const { port } = await startInProcess({
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
    const command = buildGo(folder);
    const start = performance.now();
    const secondsLeft = () => leftSeconds - (performance.now() - start) / 1_000;
    const setClock = () => vi.setSystemTime(endsAt - secondsLeft() * 1_000);
    vi.useFakeTimers({ toFake: ["Date"] });
    setClock();
    onTestFinished(() => void vi.useRealTimers());
    const target = protocol === "gRPC" ? `127.0.0.1:${port}` : `https://localhost:${port}`;
    const args = [protocol === "gRPC" ? "grpc" : "connect", target, temporaryFile("{}")];
    const callers = startCallers([...command, ...args, temporaryFile(authority.ca), file]);
    const { input, created, failures, finished } = callers;
    const feed = setInterval(() => input.write(toLine(aCreate())), 2);
    onTestFinished(() => clearInterval(feed));
    for (let isRenewed = false; secondsLeft() > -5; ) {
      if (!isRenewed && secondsLeft() < secondsAtRenewal) {
        write(second);
        isRenewed = true;
      }
      setClock();
      const before = created.length;
      await waitFor(() => created.length > before);
      await delay(50);
    }
    clearInterval(feed);
    input.end();
    await finished;
    expect(failures).toEqual([]);
  },
);
