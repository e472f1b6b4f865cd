/** Callers who do as the README advises, and a history of what they learned. */
import { setTimeout as delay } from "node:timers/promises";
import { create as createMessage } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import {
  type Investor,
  InvestorSchema,
  InvestorType,
} from "../../../gen/investor/v1/investor_pb.js";
import { maxTextLength } from "../../../src/investor/investor.ts";
import { failureOf } from "../../support/errors.ts";
import { listAll } from "../../support/pages.ts";
import { createRandom, type Random } from "../../support/random.ts";
import { aCreate } from "../../support/records.ts";
import { grpcClient, type Service, waitFor } from "../../support/service.ts";
import { type CreateRequest, type FailedCall, History, isTemporary } from "./history.ts";

/** Callers at work. */
export type Callers = ReturnType<typeof startCallers>;

/** How many requests are kept to be repeated later. */
const maxKept = 200;

/**
 * Starts callers, each with choices of its own from a seed.
 *
 * @param services those that they call; may be changed at any time
 */
export function startCallers(services: Service[], random: Random) {
  const history = new History();
  const clients = new WeakMap<Service, ReturnType<typeof grpcClient>>();
  const kept: CreateRequest[] = [];
  let isOver = false;

  /** One of the services, once there is one. */
  async function pickService(own: Random): Promise<Service> {
    while (services.length === 0) await delay(20);
    return own.pick(services);
  }

  async function pickClient(own: Random) {
    const service = await pickService(own);
    const client = clients.get(service) ?? grpcClient(service);
    clients.set(service, client);
    return client;
  }

  /** Sends a create. Some callers do not wait. */
  async function send(request: CreateRequest, own: Random): Promise<FailedCall | undefined> {
    const client = await pickClient(own);
    return sendCreate(history, client, request, own.int(0, 19) > 0 ? 20_000 : 30);
  }

  /** Creates a record with a request id, until it is stored. */
  async function createSafely(own: Random): Promise<void> {
    const request = aRequest(own, { requestId: own.pick([v4, v7])() });
    const twin = own.int(0, 19) === 0 ? send(request, own) : undefined;
    let failure = await send(request, own);
    while (failure !== undefined && isTemporary(failure.reason)) {
      await delay(50);
      failure = await send(request, own);
    }
    await twin;
    if (kept.length < maxKept) kept.push(request);
    else kept[own.int(0, maxKept - 1)] = request;
  }

  /** Creates a record without a request id, and looks for one whose outcome is unknown. */
  async function createOnce(own: Random): Promise<void> {
    const id = (await send(aRequest(own), own))?.metadata?.id;
    if (id !== undefined) await lookUp(history, await pickClient(own), id);
  }

  /** Repeats a create that was acknowledged, or its request id with other content. */
  async function createAgain(own: Random): Promise<void> {
    if (kept.length === 0) return;
    const request = own.pick(kept);
    const other = aRequest(own, { requestId: request.requestId as string });
    await send(own.int(0, 2) > 0 ? request : other, own);
  }

  async function create(own: Random): Promise<void> {
    const ways = [createSafely, createSafely, createSafely, createOnce, createOnce, createAgain];
    await own.pick(ways)(own);
    await delay(own.int(0, 40));
  }

  /** Gets what was acknowledged or seen last, some of the rest, and what is not there. */
  async function get(own: Random): Promise<void> {
    const { visible } = history;
    const wanted = [...visible.slice(-8), v7()];
    if (visible.length > 0) wanted.push(own.pick(visible));
    const client = await pickClient(own);
    await Promise.all(wanted.map((id) => lookUp(history, client, id)));
    await delay(own.int(0, 40));
  }

  /** Walks all pages, by any service each. */
  async function walk(own: Random): Promise<void> {
    const pageSize = own.pick([7, 100, 1_000]);
    const call = history.walk(`pages of ${pageSize}`);
    let pageToken = "";
    do {
      const client = await pickClient(own);
      const listing = client.listInvestors({ pageSize, pageToken }, patience());
      try {
        const page = await listing;
        for (const investor of page.investors) call.saw(investor);
        pageToken = page.nextPageToken;
        if (pageToken === "") call.ended();
      } catch {
        call.failed(await failureOf(listing));
        await delay(50);
      }
    } while (pageToken !== "" && !isOver);
    await delay(own.int(0, 200));
  }

  async function list(own: Random): Promise<void> {
    const service = await pickService(own);
    const call = history.walk("whole list");
    try {
      for (const investor of await wholeList(service)) call.saw(investor);
      call.ended();
    } catch (error) {
      const { cause } = error as Error;
      const reason = typeof cause === "string" ? cause : undefined;
      call.failed({ reason, message: String(error) });
    }
    await delay(own.int(50, 300));
  }

  const start = (count: number, work: (own: Random) => Promise<void>) =>
    Array.from({ length: count }, async () => {
      const own = createRandom(random.int(0, 2 ** 31 - 1));
      while (!isOver) await work(own);
    });
  const working = [...start(10, create), ...start(3, get), ...start(2, walk), ...start(1, list)];

  return {
    history,
    services,
    /**
     * Waits until more creates are acknowledged.
     *
     * @param recover called every second or so: a process can end later than the fault that ends it
     * @throws {Error} if that takes longer than {@link waitFor} does
     */
    async acknowledgements(count: number, recover = async () => {}): Promise<void> {
      const acknowledged = () => history.counts.acknowledged ?? 0;
      const wanted = acknowledged() + count;
      let tries = 0;
      await waitFor(async () => {
        tries += 1;
        if (tries % 50 === 0) await recover();
        return acknowledged() >= wanted;
      });
    },
    /** Lets them finish: each create with a request id until it is acknowledged. */
    async stop(): Promise<void> {
      isOver = true;
      await Promise.all(working);
    },
  };
}

/**
 * Reads all that is there from a service that is well.
 *
 * @throws {Error} a call fails, or contradicts the history
 */
export async function readBack(history: History, service: Service): Promise<void> {
  const client = grpcClient(service);
  for (const investors of [await listAll(client), await wholeList(service)]) {
    const walk = history.walk("at the end");
    for (const investor of investors) walk.saw(investor);
    walk.ended();
  }
  for (const id of history.visible) history.get(id).found(await client.getInvestor({ id }));
  history.expectSound();
}

type Client = ReturnType<typeof grpcClient>;

/** Sends a create, and returns the failure, if it fails. */
export async function sendCreate(
  history: History,
  client: Client,
  request: CreateRequest,
  patienceMs?: number,
): Promise<FailedCall | undefined> {
  const call = history.create(request);
  const creating = client.createInvestor(request, patience(patienceMs));
  return creating.then(
    (investor) => void call.acknowledged(investor),
    async () => {
      const failure = await failureOf(creating);
      call.failed(failure);
      return failure;
    },
  );
}

/** Gets a record. */
async function lookUp(history: History, client: Client, id: string): Promise<void> {
  const call = history.get(id);
  const getting = client.getInvestor({ id }, patience());
  await getting.then(call.found, async () => call.failed(await failureOf(getting)));
}

/**
 * The whole list by REST.
 *
 * @throws {Error} its cause is the reason of the refusal, if it is refused
 */
async function wholeList({ port }: Service): Promise<Investor[]> {
  const response = await fetch(`http://127.0.0.1:${port}/v1/investors`, patience());
  // One that breaks off is no JSON.
  const body = (await response.json()) as Record<string, string>[] & { reason: string };
  if (!response.ok) throw new Error("refused", { cause: body.reason });
  return body.map(({ type, ...texts }) => {
    const types = { individual: InvestorType.INDIVIDUAL, institution: InvestorType.INSTITUTION };
    return createMessage(InvestorSchema, { ...texts, type: types[type as keyof typeof types] });
  });
}

/** When a caller leaves, in milliseconds. */
function patience(ms = 120_000): { signal: AbortSignal } {
  return { signal: AbortSignal.timeout(ms) };
}

function aRequest(random: Random, changes: CreateRequest = {}): CreateRequest {
  const type = random.pick([InvestorType.INDIVIDUAL, InvestorType.INSTITUTION]);
  const city = random.pick(["", "Łódź", "𝔘𝔫𝔦 \u{1F600} \"'\\;", "x".repeat(maxTextLength)]);
  return aCreate({ type, city, ...changes });
}
