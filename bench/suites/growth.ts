import { encodePageToken } from "../../src/service/page-token.ts";
import { type Answer, compare, measureSide, type Side } from "../compare.ts";
import type { Contestant } from "../contestant.ts";
import type { Database } from "../database.ts";
import { creates, gets, page, pathTo } from "../work.ts";
import type { Growth, Plan } from "./plan.ts";

/** Measures how the service does with more callers, and with more records. */
export async function measureGrowth(
  store: Growth["store"],
  contestant: Contestant,
  database: Database,
  { effort, growth, say }: Plan,
): Promise<{ growth: Growth[]; answers: Answer[] }> {
  const found: Growth[] = [];
  const sides: Record<Growth["operation"], (records: number) => Promise<Side>> = {
    create: async () => ({
      ...common,
      path: pathTo("createInvestor"),
      work: () => creates("grpc"),
    }),
    get: async () => {
      const known = await database.sample(2_000);
      return { ...common, path: pathTo("getInvestor"), work: () => gets("grpc", known) };
    },
    "page N": (records) => pageAt(Math.floor(records * 0.9)),
  };
  const common = { contestant, protocol: "grpc" as const };

  async function pageAt(offset: number): Promise<Side> {
    const [before, first] = await database.at(Math.max(0, offset - 1));
    const work = offset === 0 ? page("", before) : page(encodePageToken(before.id), first);
    return { ...common, path: pathTo("listInvestors"), work: () => work };
  }

  async function measure(operation: Growth["operation"], callers: number, records: number) {
    const side = await sides[operation](records);
    const { rate, p50, p99 } = await measureSide(side, callers, effort.seconds);
    found.push({ store, operation, callers, records, rate, p50, p99 });
  }

  for (const records of growth.records) {
    say(`${store} with ${records} records`);
    await database.fill(Math.max(0, records - (await database.count())));
    for (const operation of ["create", "get", "page N"] as const)
      await measure(operation, 32, records);
  }
  const records = await database.count();
  const paging = await compare(
    {
      title: `page at 90 % of ${growth.records.at(-1)} records against the first, ${store}`,
      measure: "p50",
      callers: 1,
      ours: await pageAt(Math.floor(records * 0.9)),
      other: await pageAt(0),
      target: 1.2,
    },
    effort,
  );
  for (const callers of growth.callers) {
    say(`${store} with ${callers} callers`);
    for (const operation of ["create", "get"] as const) await measure(operation, callers, records);
  }
  return { growth: found, answers: [{ ...paging, other: "page 1" }] };
}
