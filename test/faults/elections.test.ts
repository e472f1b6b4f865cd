import { setTimeout as delay } from "node:timers/promises";
import { v4, v7 } from "uuid";
import { expect, it } from "vitest";
import { failureOf } from "../support/errors.ts";
import { type LinkedSet, startLinkedSet } from "../support/linked-set.ts";
import { describeWithMongo } from "../support/mongodb.ts";
import { createRandom, type Random, seedOf } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service, startService, waitFor } from "../support/service.ts";
import { successor } from "./mongodb-faults.ts";

type Client = ReturnType<typeof grpcClient>;

const rounds = 6;
const minutes = Number(process.env.FAULTS_MINUTES ?? 0);
const faults = ["kill", "pause", "isolate"] as const;
const testTimeout = minutes * 60_000 + 300_000;

/** What callers were told, and what they saw that contradicts it. */
interface History {
  /** The contents that were acknowledged, by the ids of their records. */
  readonly acknowledged: Map<string, string>;
  /** The contents whose outcome cannot be looked up; each may be stored once. */
  readonly open: Set<string>;
  /** How often each contradiction was seen. */
  readonly violations: Record<string, number>;
  readonly counts: Record<string, number>;
}

async function createHistory(set: LinkedSet, random: Random): Promise<void> {
  const history: History = { acknowledged: new Map(), open: new Set(), violations: {}, counts: {} };
  const env = { DATABASE_URL: set.url(`test-${v4()}`), REQUEST_TIMEOUT: "3s" };
  const services = [await startService(env), await startService(env)];
  const newClient = () => grpcClient(random.pick(services));
  let isOver = false;

  const until = async (work: () => Promise<void>) => {
    while (!isOver) await work();
  };
  const callers = [
    ...Array.from({ length: 8 }, (_, i) => until(() => create(newClient, i % 2 === 0, history))),
    ...services.flatMap((service) => {
      const client = grpcClient(service);
      return [
        until(() => getSome(client, random, history)),
        until(() => getSome(client, random, history)),
        until(() => walk(client, history)),
        until(() => walkByRest(service, history)),
      ];
    }),
  ];

  const end = performance.now() + minutes * 60_000;
  for (let round = 0; minutes ? performance.now() < end : round < rounds; round += 1) {
    const fault = minutes ? random.pick(faults) : (faults[round % faults.length] ?? "kill");
    await acknowledgements(history, 10);
    const primary = await set.primary();
    await delay(random.int(0, 500));
    await acknowledgements(history, 1);
    set[fault](primary);
    if (await successor(set, primary)) count(history, "election");
    await delay(random.int(500, 2_000));
    await set.heal();
  }
  await acknowledgements(history, 10);
  isOver = true;
  await Promise.all(callers);
  await expectAllOnce(grpcClient(services[0] as Service), history);
  console.log(`elections: ${history.acknowledged.size} acknowledged`, history.counts);
  expect(history.counts.election).toBeGreaterThanOrEqual(rounds / 2);
  expect(history.violations).toEqual({});
}

/** Waits for more acknowledgements. */
async function acknowledgements({ acknowledged }: History, count: number): Promise<void> {
  const before = acknowledged.size;
  const end = performance.now() + 60_000;
  while (acknowledged.size < before + count) {
    if (performance.now() > end) throw new Error("creates are not acknowledged any more");
    await delay(1);
  }
}

/** Creates one record, as the README advises: until it is stored, once. */
async function create(newClient: () => Client, hasRequestId: boolean, history: History) {
  const request = aCreate(hasRequestId ? { requestId: v7() } : {});
  const content = String(request.firstName);
  for (;;) {
    const call = newClient().createInvestor(request);
    const id = await call.then(
      (investor) => investor.id,
      () => undefined,
    );
    if (id !== undefined) {
      history.acknowledged.set(id, content);
      return;
    }
    const { reason = "", code, metadata } = await failureOf(call);
    count(history, `create ${reason}`);
    if (reason === "OUTCOME_UNKNOWN" && !hasRequestId) {
      const unknown = metadata?.id ?? "";
      if (await isStored(newClient, unknown, history)) {
        history.acknowledged.set(unknown, content);
        return;
      }
    } else if (reason === "DEADLINE_EXCEEDED" && !hasRequestId) {
      history.open.add(content);
      return;
    } else if (!isTemporary(code)) {
      violate(history, `create: ${code} ${reason}`);
      return;
    }
    await delay(20);
  }
}

/** Looks an id up until there is a reply. */
async function isStored(newClient: () => Client, id: string, history: History): Promise<boolean> {
  for (;;) {
    const call = newClient().getInvestor({ id });
    const isFound = await call.then(
      () => true,
      () => false,
    );
    if (isFound) return true;
    const { code, reason } = await failureOf(call);
    count(history, `look up ${reason}`);
    if (code === "NotFound") return false;
    if (!isTemporary(code)) violate(history, `look up: ${code} ${reason}`);
    await delay(20);
  }
}

/** Gets what was acknowledged last, and some of the rest. */
async function getSome(client: Client, random: Random, history: History): Promise<void> {
  const ids = [...history.acknowledged.keys()];
  const wanted = [...ids.slice(-16), ...(ids.length > 0 ? [random.pick(ids)] : [])];
  await Promise.all(
    wanted.map(async (id) => {
      const call = client.getInvestor({ id });
      const content = await call.then(
        (investor) => investor.firstName,
        () => undefined,
      );
      if (content !== undefined) {
        count(history, "get");
        if (content !== history.acknowledged.get(id)) violate(history, "get: altered");
        return;
      }
      const { code, reason } = await failureOf(call);
      count(history, `get ${reason}`);
      if (!isTemporary(code)) violate(history, `get: ${code} ${reason}`);
    }),
  );
  await delay(10);
}

/** Walks all pages, and expects what was acknowledged before on them. */
async function walk(client: Client, history: History): Promise<void> {
  const before = [...history.acknowledged.keys()];
  const seen = new Set<string>();
  for (let pageToken: string | undefined = ""; pageToken !== undefined; ) {
    const call = client.listInvestors({ pageSize: 100, pageToken });
    const page = await call.catch(() => undefined);
    if (page !== undefined) {
      for (const { id } of page.investors) seen.add(id);
      pageToken = page.nextPageToken || undefined;
      continue;
    }
    const { code, reason } = await failureOf(call);
    count(history, `page ${reason}`);
    if (!isTemporary(code)) violate(history, `page: ${code} ${reason}`);
    await delay(20);
  }
  compare("walk", before, seen, history);
}

/** Reads the whole list, and expects what was acknowledged before in it. */
async function walkByRest({ httpPort }: Service, history: History): Promise<void> {
  const before = [...history.acknowledged.keys()];
  // A list that breaks off is no JSON.
  const list = await fetch(`http://127.0.0.1:${httpPort}/v1/investors`)
    .then(async (res) => (res.ok ? ((await res.json()) as { id: string }[]) : undefined))
    .catch(() => undefined);
  if (list === undefined) count(history, "list broken off");
  else compare("list", before, new Set(list.map(({ id }) => id)), history);
  await delay(100);
}

function compare(what: string, before: string[], seen: Set<string>, history: History): void {
  count(history, what);
  const missing = before.filter((id) => !seen.has(id));
  if (missing.length === 0) return;
  violate(history, `${what} misses records`);
}

/** Expects each acknowledged record once, each open one at most once, and nothing else. */
async function expectAllOnce(client: Client, history: History): Promise<void> {
  const stored: { id: string; firstName: string }[] = [];
  let pageToken = "";
  do {
    const page = await waitFor(() =>
      client.listInvestors({ pageSize: 1_000, pageToken }).catch(() => undefined),
    );
    stored.push(...page.investors);
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  const told = new Map([...history.acknowledged].map(([id, content]) => [content, id]));
  const seen = new Set<string>();
  for (const { id, firstName } of stored) {
    if (seen.has(firstName)) violate(history, "stored twice");
    else if (told.get(firstName) !== id && !history.open.has(firstName)) {
      violate(history, "stored, and not told");
    }
    seen.add(firstName);
  }
  for (const content of told.keys()) {
    if (!seen.has(content)) violate(history, "acknowledged, and not stored");
  }
}

/** Whether a failure says no more than that it has to be tried again. */
function isTemporary(code: string): boolean {
  return code === "Unavailable" || code === "DeadlineExceeded";
}

function count({ counts }: History, what: string): void {
  counts[what] = (counts[what] ?? 0) + 1;
}

function violate({ violations }: History, what: string): void {
  violations[what] = (violations[what] ?? 0) + 1;
}

await describeWithMongo("elections", "standalone", () => {
  it("hide nothing that was acknowledged, and double nothing", {
    timeout: testTimeout,
  }, async () => {
    const random = createRandom(seedOf("elections"));
    const set = await startLinkedSet({ delayMs: 100, electionTimeoutMs: 1_500 });
    await createHistory(set, random);
  });
});
