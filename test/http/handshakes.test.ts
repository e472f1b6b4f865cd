import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { describe, expect, it, onTestFinished } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { temporaryFolder } from "../support/folder.ts";
import { startService } from "../support/service.ts";

/** The beginning of a ClientHello of 128 KiB (RFC 8446, 4 and 5.1). */
const hello = Buffer.concat(
  Array.from({ length: 4 }, (_, i) => {
    const part = Buffer.alloc(16_384);
    if (i === 0) part.writeUInt32BE((1 << 24) | (128 * 1024));
    return Buffer.concat([Buffer.from([22, 3, 1, 0x40, 0]), part]);
  }),
);

async function openTcp(port: number): Promise<Socket> {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket.resume();
}

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
    for (const socket of some) socket.write(hello);
    const idle = await open(70);
    await expect.poll(() => some.every(({ closed }) => closed)).toBe(true);
    expect(idle.some(({ closed }) => closed)).toBe(false);
  });
});
