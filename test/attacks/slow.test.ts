import { describe, expect, it } from "vitest";
import { createRandom } from "../support/random.ts";
import { startCallers } from "./callers.ts";
import { type HalfWay, halfWays } from "./slow.ts";
import { type Hostile, type Kind, startTarget } from "./target.ts";

const kinds: Kind[] = ["plain", "TLS"];

/** Opens a connection, and returns how long the service takes to close it, in seconds. */
async function untilClosed({ open, openTcp }: Hostile, halfWay: HalfWay): Promise<number> {
  const { port, first, drip, isTcp = false, isRead = true, seconds } = halfWay;
  const start = performance.now();
  const { socket, tcp, closes } = await (isTcp ? openTcp : open)(port);
  if (!isRead) socket.pause();
  socket.write(first);
  const now = () => (performance.now() - start) / 1_000;
  while (!tcp.destroyed && now() < 2 * seconds) {
    await closes(200);
    if (drip) socket.write(drip);
  }
  return now();
}

describe.runIf(process.platform === "linux")("connections that stop half-way", () => {
  it("are closed in time by the service, which keeps nothing of them", {
    timeout: 300_000,
  }, async () => {
    const late = kinds.map(async (kind) => {
      const target = await startTarget(kind);
      const callers = await startCallers(target);
      await callers.stop();
      const initial = await target.holdings();
      const hostile = target.hostile(createRandom(0), false);
      const all = halfWays(hostile.credentials).map(async (halfWay) => {
        const took = await untilClosed(hostile, halfWay);
        // The service looks once a second, and a busy machine is late.
        const isLate = took > 1.1 * halfWay.seconds + 3;
        return isLate
          ? [
              `${kind}: ${took} s, ${JSON.stringify({ ...halfWay, first: halfWay.first.toString() })}`,
            ]
          : [];
      });
      const found = await Promise.all(all);
      await expect.poll(() => target.excess(initial)).toEqual([]);
      return found.flat();
    });
    expect((await Promise.all(late)).flat()).toEqual([]);
  });
});
