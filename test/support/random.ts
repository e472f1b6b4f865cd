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

/**
 * The seed of a randomised test: that of the environment variable SEED, which repeats a run,
 * or a new one. It is printed, so that a failure can be repeated.
 */
export function seedOf(test: string): number {
  const seed = process.env.SEED === undefined ? randomInt(2 ** 31) : Number(process.env.SEED);
  console.log(`${test}: SEED=${seed}`);
  return seed;
}
