import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import type { Range } from "../store/store.ts";
import type { Source } from "./copier.ts";

const pageSize = 1_000;

/**
 * Creates a source of what is listed page by page.
 *
 * @param total about how many records there are
 */
export function createPagedSource(
  total: number,
  list: (range: Range) => Promise<Investor[]>,
  close: () => Promise<void>,
): Source {
  let done = 0;

  async function* read() {
    let after: string | undefined;
    for (;;) {
      const page = await list({ after, limit: pageSize });
      after = page.at(-1)?.id;
      if (after === undefined) return;
      done += page.length;
      yield page;
    }
  }

  return { batches: read(), partRead: () => Math.min(1, done / Math.max(1, total)), close };
}
