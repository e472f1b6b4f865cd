/** Requests whose bytes are changed, cut or reset. */
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import type { Random } from "../../support/random.ts";
import { http1Requests, http2Frames } from "./requests.ts";
import type { Attack, Connection } from "./target.ts";

/** Bytes that mean something to one parser or another. */
const telling = [0, 1, 3, 4, 5, 8, 10, 13, 0x20, 0x22, 0x2f, 0x3a, 0x7b, 0x7f, 0x80, 0xc0, 0xff];

/** Changes one thing about bytes; at most 256 KiB are left. */
function change(bytes: Buffer, random: Random): Buffer {
  const start = random.int(0, bytes.length);
  const end = Math.min(bytes.length, start + random.int(0, random.pick([1, 16, 1_000_000])));
  const before = bytes.subarray(0, start);
  const part = bytes.subarray(start, end);
  const after = bytes.subarray(end);
  const noise = Array.from({ length: random.int(1, 64) }, () => random.int(0, 255));
  const parts = random.pick([
    [before],
    [before, after],
    [before, ...Array(random.pick([2, 20, 200])).fill(part), after],
    [after, part, before],
    [before, Buffer.from(noise), after],
    [before, Buffer.from([random.pick(telling)]), after],
  ]);
  return Buffer.concat(parts).subarray(0, 262_144);
}

function mutate(bytes: Buffer, random: Random): Buffer {
  return Array.from({ length: random.int(1, 4) }).reduce<Buffer>(
    (all) => change(all, random),
    bytes,
  );
}

/** Frames of HTTP/2 of which some are missing, repeated, moved or changed. */
function mutateFrames(frames: Buffer[], random: Random): Buffer {
  const mutated = [...frames];
  for (let i = random.int(1, 6); i > 0 && mutated.length > 0; i -= 1) {
    const at = random.int(0, mutated.length - 1);
    const one = mutated[at] ?? Buffer.alloc(9);
    const altered = Buffer.from(one);
    // The first nine bytes are length, type, flags and stream (RFC 9113, 4.1).
    altered[random.int(0, 8)] = random.pick(telling);
    mutated.splice(at, 1, ...random.pick([[], [one, one], [altered], [change(one, random)]]));
    if (random.int(0, 2) === 0) mutated.splice(random.int(0, mutated.length), 0, one);
  }
  return Buffer.concat(mutated);
}

/** Sends bytes in some pieces, and ends the connection at any instant, in one way or another. */
async function send({ socket, tcp, closes }: Connection, bytes: Buffer, random: Random) {
  const cuts = Array.from({ length: random.int(0, 3) }, () => random.int(0, bytes.length));
  const ends = [...cuts.sort((a, b) => a - b), bytes.length];
  for (const [i, end] of ends.entries()) {
    if (!tcp.destroyed) socket.write(bytes.subarray(ends[i - 1] ?? 0, end));
    if (random.int(0, 1) === 0) await delay(random.int(0, 5));
  }
  const ending = random.pick(["reset", "reset", "leave", "half-close", "wait"]);
  if (ending === "half-close") socket.end();
  if (ending !== "leave") await closes(random.int(0, ending === "reset" ? 10 : 100));
  if (ending === "reset") tcp.resetAndDestroy();
  else socket.destroy();
}

/** Attacks by requests that are almost right. */
export const forms: Record<string, Attack> = {
  async "mutated requests of HTTP/1.1"(hostile) {
    const { random, open } = hostile;
    const requests = random.shuffle(http1Requests(hostile)).slice(0, random.int(1, 4));
    await send(await open("http/1.1"), mutate(Buffer.concat(requests), random), random);
  },
  async "mutated frames of HTTP/2"(hostile) {
    const { random, open } = hostile;
    const bytes = mutateFrames(http2Frames(hostile), random);
    await send(await open("h2"), bytes, random);
  },
  async "valid calls that are reset at any instant"(hostile) {
    const { random, open } = hostile;
    const isHttp2 = random.int(0, 1) === 0;
    const all = isHttp2 ? http2Frames(hostile) : random.shuffle(http1Requests(hostile));
    const { socket, tcp, closes } = await open(isHttp2 ? "h2" : "http/1.1");
    socket.write(Buffer.concat(all.slice(0, random.int(1, all.length))));
    const reply = once(socket, "data").catch(() => {});
    await Promise.race([reply, closes(random.pick([random.int(0, 20), 500]))]);
    tcp.resetAndDestroy();
  },
};
