import { randomInt } from "node:crypto";
import { uniformInt } from "pure-rand/distribution/uniformInt";
import { xoroshiro128plus } from "pure-rand/generator/xoroshiro128plus";

/** Random choices that a seed repeats. */
export interface Random {
  /** A whole number from `min` to `max`, both included. */
  int(min: number, max: number): number;
  /** One of the items. */
  pick<T>(items: readonly T[]): T;
  /** The items in any order. */
  shuffle<T>(items: readonly T[]): T[];
}

/** The choices of one seed. */
export function createRandom(seed: number): Random {
  const generator = xoroshiro128plus(seed);
  const int = (min: number, max: number) => uniformInt(generator, min, max);
  return {
    int,
    pick: <T>(items: readonly T[]) => items[int(0, items.length - 1)] as T,
    shuffle<T>(items: readonly T[]) {
      const rest = [...items];
      return items.map(() => rest.splice(int(0, rest.length - 1), 1)[0] as T);
    },
  };
}

/** Bodies of JSON that are no request, or say less than one. */
export const oddJson = ["null", "[]", "1", '"', "{}", "", '{"id":1}', '{"id":null}'];

/** Breaks bytes in one place, or more. */
export function broken(bytes: Buffer, { int, pick }: Random): Buffer {
  const at = int(0, bytes.length);
  const other = Buffer.of(int(0, 255));
  return pick([
    bytes.subarray(0, at),
    Buffer.concat([bytes, bytes]),
    Buffer.concat([bytes.subarray(0, at), other, bytes.subarray(at)]),
    Buffer.concat([bytes.subarray(0, at), other, bytes.subarray(at + 1)]),
    Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1)]),
  ]);
}

/**
 * The seed of a randomised test: that of the environment variable SEED, which repeats a run,
 * or a new one. It is printed, so that a failure can be repeated.
 */
export function seedOf(test: string): number {
  const seed = process.env.SEED === undefined ? randomInt(2 ** 31) : Number(process.env.SEED);
  console.log(`${test}: SEED=${seed}`);
  return seed;
}
