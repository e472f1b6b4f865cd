import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { setImmediate as nextTurn } from "node:timers/promises";
import { describe, expect, it, onTestFinished } from "vitest";
import { createHandshakes } from "../../src/http/handshakes.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { unfinishedHello } from "../support/client-hello.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startService } from "../support/service.ts";
import { openTcp } from "../support/tcp.ts";

describe("handshakes that do not end", () => {
  it("that send much are closed if there are many", async () => {
    const folder = temporaryFolder();
    const service = await startService(
      await writeServerFiles(folder, await createAuthority()),
      folder,
    );
    const open = (count: number) =>
      Promise.all(Array.from({ length: count }, () => openTcp(service.httpPort)));
    const some = await open(20);
    for (const socket of some) socket.write(unfinishedHello(4));
    const idle = await open(70);
    await expect.poll(() => some.every(({ closed }) => closed)).toBe(true);
    expect(idle.some(({ closed }) => closed)).toBe(false);
  });
});

/** Keeps the event loop busy, in milliseconds. */
function work(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

describe("handshakes of a crowd", () => {
  it("are all read, though other connections take every second turn", async () => {
    const handshakes = createHandshakes();
    const crowd = 256;
    let begun = 0;
    let read = 0;
    const server = createServer((socket) => {
      handshakes.begin(socket.once("data", () => (read += 1)));
      begun += 1;
    });
    onTestFinished(() => void server.close());
    await once(server.listen(0, "127.0.0.1"), "listening");
    const { port } = server.address() as AddressInfo;
    const clients = await Promise.all(Array.from({ length: crowd }, () => openTcp(port)));
    await expect.poll(() => begun).toBe(crowd);
    for (const client of clients) client.write("x");
    for (let i = 0; i < 40; i += 1) {
      handshakes.skipTurn();
      work(27);
      await nextTurn();
      work(12);
      await nextTurn();
    }
    expect(read).toBe(crowd);
  });
});
