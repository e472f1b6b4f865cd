import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import type { Contestant } from "../contestant.ts";
import { creating, type Entrant, getting, verify } from "../entrant.ts";
import { measure, type Outcome, run, type Side } from "../race.ts";
import { page, pathTo } from "../work.ts";
import { type Growth, mostRecords, type Plan, usualCallers } from "./plan.ts";

/** Measures how the service does with more callers, and with more records. */
export async function measureGrowth(
  store: Growth["store"],
  ours: Entrant,
  plan: Plan,
): Promise<{ growth: Growth[]; paging: Outcome }> {
  const { effort, growth, say } = plan;
  const { contestant, database } = ours;
  const found: Growth[] = [];
  const note = async (
    operation: Growth["operation"],
    side: Side,
    callers: number,
    records: number,
  ) => {
    const measured = await measure(side, callers, effort.seconds);
    found.push({ store, operation, callers, records, ...measured });
  };
  let pageN = await pageAt(contestant, 0);
  for (const records of growth.records) {
    say(`${store} with ${records} records`);
    const missing = Math.max(0, records - (await database.count()));
    await database.fill(missing);
    ours.created += missing;
    ours.known = await database.sample(2_000);
    pageN = await pageAt(contestant, Math.floor(records * 0.9));
    await note("create", creating(ours), usualCallers, records);
    await note("get", getting(ours), usualCallers, records);
    await note("page N", pageN, usualCallers, records);
  }
  const records = mostRecords(plan);
  say(`${store}: page N beside page 1`);
  const paging = await run(
    {
      title: `The page at 90 % of ${records.toLocaleString("en")} records, ${store}`,
      meaning: "Pages of 100 records: how deep in the list a page is makes little difference.",
      callers: 1,
      ours: pageN,
      others: [
        [
          { ...(await pageAt(contestant, 0)), name: "the first page" },
          { measure: "p50", must: 1.2, aim: 1 },
        ],
      ],
    },
    effort,
  );
  for (const callers of growth.callers) {
    if (callers === usualCallers) continue;
    say(`${store} with ${callers} callers`);
    await note("create", creating(ours), callers, records);
    await note("get", getting(ours), callers, records);
  }
  await verify([ours]);
  return { growth: found, paging };
}

/** The page after at least so many others, found as a caller finds it. */
async function pageAt(contestant: Contestant, offset: number): Promise<Side> {
  const { name, httpPort } = contestant;
  const list = async (pageToken: string) => {
    const url = `http://127.0.0.1:${httpPort}${pathTo(InvestorService.method.listInvestors)}`;
    const response = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ pageSize: 1_000, pageToken }),
    });
    if (!response.ok) throw new Error(`a page was answered with ${response.status}`);
    return (await response.json()) as { investors: { firstName: string }[]; nextPageToken: string };
  };
  let token = "";
  let found = await list(token);
  for (let seen = found.investors.length; seen <= offset; seen += found.investors.length) {
    token = found.nextPageToken;
    found = await list(token);
  }
  const [first] = found.investors;
  if (first === undefined) throw new Error(`there is no page after ${offset} records`);
  return { name, contestant, work: () => page(token, first) };
}
