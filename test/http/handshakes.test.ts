import { describe, expect, it } from "vitest";
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
