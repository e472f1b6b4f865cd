/** Callers who do as the README advises, and a history of what they were told. */
import { setTimeout as delay } from "node:timers/promises";
import { create as createMessage } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import { type Investor, InvestorSchema, InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { failureOf } from "../support/errors.ts";
import { listAll } from "../support/pages.ts";
import { createRandom, type Random } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient, type Service } from "../support/service.ts";
import { type CreateRequest, type FailedCall, History, isTemporary } from "./history.ts";

type Client = ReturnType<typeof grpcClient>;
type Problem = { reason: string; detail: string };

/** Callers at work. */
export type Callers = ReturnType<typeof startCallers>;

/** How many requests are remembered to be repeated later. */
const maxRemembered = 200;

/**
 * Starts callers, each with choices of its own from a seed.
 *
 * @param services those that they call; may be changed at any time
 */
export function startCallers(services: Service[], random: Random) {
  const history = new History();
  const clients = new WeakMap<Service, Client>();
  const remembered: CreateRequest[] = [];
  let isOver = false;

  /** One of the services; waits for one if there is none. */
  async function pickService(own: Random): Promise<Service> {
    while (services.length === 0) await delay(20);
    return own.pick(services);
  }

  /** A client, of which each service has one. */
  async function pickClient(own: Random): Promise<Client> {
    const service = await pickService(own);
    const client = clients.get(service) ?? grpcClient(service);
    clients.set(service, client);
    return client;
  }

  /** Sends a create, and returns the failure, if it fails. Some callers do not wait. */
  async function send(request: CreateRequest, own: Random): Promise<FailedCall | undefined> {
    const client = await pickClient(own);
    const call = history.create(request);
    const creating = client.createInvestor(request, patience(own.int(0, 19) > 0 ? 20_000 : 30));
    return creating.then(
      (investor) => void call.acknowledged(investor),
      async () => {
        const failure = await toFailedCall(creating);
        call.failed(failure);
        return failure;
      },
    );
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
    if (remembered.length < maxRemembered) remembered.push(request);
    else remembered[own.int(0, maxRemembered - 1)] = request;
  }

  /** Creates a record without a request id, and repeats only what has done nothing. */
  async function createOnce(own: Random): Promise<void> {
    const request = aRequest(own);
    for (;;) {
      const failure = await send(request, own);
      if (failure === undefined) return;
      await delay(50);
      if (failure.id !== undefined) await look(failure.id, own);
      const isRefused = ["OVERLOADED", "STORE_UNAVAILABLE"].includes(failure.reason);
      if (!isRefused || isOver || own.int(0, 1) === 0) return;
    }
  }

  /** Repeats a create that was acknowledged, or its request id with other content. */
  async function createAgain(own: Random): Promise<void> {
    if (remembered.length === 0) return;
    const request = own.pick(remembered);
    const isSame = own.int(0, 2) > 0;
    const other = aRequest(own, { requestId: request.requestId as string });
    await send(isSame ? request : other, own);
  }

  async function create(own: Random): Promise<void> {
    const choice = own.int(0, 99);
    if (choice < 55) await createSafely(own);
    else if (choice < 88) await createOnce(own);
    else if (choice < 98) await createAgain(own);
    else await send(aRequest(own, { country: "GB!" }), own);
    await delay(own.int(0, 40));
  }

  async function look(id: string, own: Random): Promise<void> {
    await lookUp(history, await pickClient(own), id);
  }

  /** Gets what was acknowledged or seen last, some of the rest, and what is not there. */
  async function get(own: Random): Promise<void> {
    const { visible } = history;
    const wanted = visible.slice(-8);
    if (visible.length > 0) wanted.push(own.pick(visible));
    if (own.int(0, 9) === 0) wanted.push(v7());
    await Promise.all(wanted.map((id) => look(id, own)));
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
        call.failed(await toFailedCall(listing));
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
      call.failed({ reason: typeof cause === "string" ? cause : "", message: String(error) });
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
     * @throws {Error} if that takes more than a minute
     */
    async acknowledgements(count: number): Promise<void> {
      const acknowledged = () => history.counts.acknowledged ?? 0;
      const wanted = acknowledged() + count;
      const end = performance.now() + 60_000;
      while (acknowledged() < wanted) {
        if (performance.now() > end) throw new Error("creates are not acknowledged any more");
        await delay(5);
      }
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
  const pages = history.walk("at the end, pages");
  for (const investor of await listAll(client)) pages.saw(investor);
  pages.ended();
  const whole = history.walk("at the end, whole list");
  for (const investor of await wholeList(service)) whole.saw(investor);
  whole.ended();
  for (const id of history.visible) await lookUp(history, client, id);
  history.expectSound();
}

async function lookUp(history: History, client: Client, id: string): Promise<void> {
  const call = history.get(id);
  const getting = client.getInvestor({ id }, patience());
  await getting.then(call.found, async () => call.failed(await toFailedCall(getting)));
}

/**
 * The whole list by REST.
 *
 * @throws {Error} its cause is the reason of the refusal, if it is refused
 */
async function wholeList({ httpPort }: Service): Promise<Investor[]> {
  const response = await fetch(`http://127.0.0.1:${httpPort}/v1/investors`, patience());
  // One that breaks off is no JSON.
  const body = (await response.json()) as Record<string, string>[] & Problem;
  if (!response.ok) throw new Error(body.detail, { cause: body.reason });
  return body.map(({ type, ...texts }) => {
    const known = { individual: InvestorType.INDIVIDUAL, institution: InvestorType.INSTITUTION };
    return createMessage(InvestorSchema, { ...texts, type: known[type as keyof typeof known] });
  });
}

async function toFailedCall(call: Promise<unknown>): Promise<FailedCall> {
  const { reason = "", message, metadata } = await failureOf(call);
  return { reason, message, id: metadata?.id };
}

/** When a caller leaves, in milliseconds. */
function patience(ms = 20_000): { signal: AbortSignal } {
  return { signal: AbortSignal.timeout(ms) };
}

function aRequest(random: Random, changes: CreateRequest = {}): CreateRequest {
  const type = random.pick([InvestorType.INDIVIDUAL, InvestorType.INSTITUTION]);
  const city = random.pick(["", "Łódź", "𝔘𝔫𝔦 \u{1F600} \"'\\;", "x".repeat(256)]);
  return aCreate({ type, city, ...changes });
}
