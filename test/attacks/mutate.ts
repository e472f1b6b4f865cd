/** Changes of bytes that a parser should never have to see. */
import type { Random } from "../support/random.ts";

/** Bytes that mean something to somebody. */
const telling = [
  0, 1, 0x0a, 0x0d, 0x20, 0x22, 0x25, 0x2f, 0x3a, 0x5c, 0x7b, 0x7f, 0x80, 0xc0, 0xff,
];

/** Numbers on which counting goes wrong. */
const numbers = ["0", "-1", "1e9", "65537", "4294967296", "9007199254740993", "0x10", "+5", ""];

type Mutation = (bytes: Buffer, random: Random) => Buffer;

/** A part of the bytes: where it begins and ends. */
function part({ length }: Buffer, random: Random, longest = length): [number, number] {
  const start = random.int(0, length);
  return [start, Math.min(length, start + random.int(0, longest))];
}

const mutations: Mutation[] = [
  function flip(bytes, random) {
    const at = random.int(0, bytes.length - 1);
    return bytes.with(at, (bytes[at] ?? 0) ^ (1 << random.int(0, 7))) as Buffer;
  },
  function overwrite(bytes, random) {
    return bytes.with(random.int(0, bytes.length - 1), random.pick(telling)) as Buffer;
  },
  function truncate(bytes, random) {
    return bytes.subarray(0, random.int(0, bytes.length));
  },
  function remove(bytes, random) {
    const [start, end] = part(bytes, random, 64);
    return Buffer.concat([bytes.subarray(0, start), bytes.subarray(end)]);
  },
  function repeat(bytes, random) {
    const [start, end] = part(bytes, random);
    const times = random.pick([2, 3, 20, 200]);
    const copies = Array<Buffer>(times).fill(bytes.subarray(start, end));
    return Buffer.concat([bytes.subarray(0, start), ...copies, bytes.subarray(end)]);
  },
  function move(bytes, random) {
    const [start, end] = part(bytes, random, 128);
    const rest = Buffer.concat([bytes.subarray(0, start), bytes.subarray(end)]);
    const at = random.int(0, rest.length);
    return Buffer.concat([rest.subarray(0, at), bytes.subarray(start, end), rest.subarray(at)]);
  },
  function insert(bytes, random) {
    const at = random.int(0, bytes.length);
    const more = Buffer.from(Array.from({ length: random.int(1, 64) }, () => random.int(0, 255)));
    return Buffer.concat([bytes.subarray(0, at), more, bytes.subarray(at)]);
  },
  function recount(bytes, random) {
    const text = bytes.toString("latin1");
    const found = [...text.matchAll(/\d+/g)];
    if (found.length === 0) return bytes;
    const { index, 0: digits } = random.pick(found);
    const changed = text.slice(0, index) + random.pick(numbers) + text.slice(index + digits.length);
    return Buffer.from(changed, "latin1");
  },
];

/** Bytes with one to four changes, at most 256 KiB of them. */
export function mutate(bytes: Buffer, random: Random): Buffer {
  let changed = bytes;
  for (let i = random.int(1, 4); i > 0 && changed.length > 0; i -= 1) {
    // A copy by `with` is no Buffer.
    changed = Buffer.from(random.pick(mutations)(changed, random)).subarray(0, 262_144);
  }
  return changed;
}

/** Frames of HTTP/2 of which some are missing, doubled, moved, or not what they say. */
export function mutateFrames(frames: readonly Buffer[], random: Random): Buffer {
  const changed = [...frames];
  for (let i = random.int(1, 6); i > 0 && changed.length > 1; i -= 1) {
    const at = random.int(0, changed.length - 1);
    const [frame = Buffer.alloc(9)] = changed.splice(at, 1);
    const elsewhere = random.int(0, changed.length);
    const altered = Buffer.from(frame);
    // Length, type, flags and stream stand in the first nine bytes (RFC 9113, 4.1).
    if (altered.length > 8) altered[random.int(0, 8)] = random.pick([...telling, 3, 4, 5, 8]);
    const change = random.pick(["drop", "double", "move", "alter", "mutate"] as const);
    if (change === "double") changed.splice(at, 0, frame, frame);
    if (change === "move") changed.splice(elsewhere, 0, frame);
    if (change === "alter") changed.splice(at, 0, altered);
    if (change === "mutate") changed.splice(at, 0, mutate(frame, random));
  }
  return Buffer.concat(changed);
}
