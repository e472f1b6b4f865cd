/** Callers who do as the README advises, and a history of what they were told. */
import { setTimeout as delay } from "node:timers/promises";
import { v4, v7 } from "uuid";
import { InvestorType } from "../../gen/investor/v1/investor_pb.js";
import { createRandom, type Random } from "../support/random.ts";
import { aCreate } from "../support/records.ts";
import type { Service } from "../support/service.ts";
import {
  type CreateRequest,
  createHistory,
  type FailedCall,
  type History,
  isTemporary,
} from "./history.ts";
import { CallError, type CallOptions, type Way, waysTo } from "./ways.ts";

/** Callers at work. */
export interface Callers {
  readonly history: History;
  /** The services that they call; may be changed at any time. */
  readonly services: Service[];
  /**
   * Waits until more creates are acknowledged.
   *
   * @throws {Error} if that takes more than a minute
   */
  acknowledgements(count: number): Promise<void>;
  /** Lets them finish: each create with a request id until it is acknowledged. */
  stop(): Promise<void>;
}

const creators = 10;
const getters = 3;
const walkers = 2;

/** How many get at once at the end, which no service refuses. */
const gettersAtEnd = 16;

/** How many requests are remembered to be repeated later. */
const maxRemembered = 200;

/** Starts them; each makes choices of its own from a seed. */
export function startCallers(services: Service[], random: Random): Callers {
  const history = createHistory();
  const waysOf = new WeakMap<Service, Way[]>();
  const remembered: CreateRequest[] = [];
  let isOver = false;

  /** One of the ways; waits for a service if there is none. */
  async function pickWay(own: Random, isFit = (_: Way) => true): Promise<Way> {
    while (services.length === 0) await delay(20);
    const service = own.pick(services);
    let ways = waysOf.get(service);
    if (ways === undefined) {
      ways = waysTo(service);
      waysOf.set(service, ways);
    }
    return own.pick(ways.filter(isFit));
  }

  /** Sends a create; the failure, if it fails. */
  async function send(
    request: CreateRequest,
    own: Random,
    options?: CallOptions,
  ): Promise<FailedCall | undefined> {
    const way = await pickWay(own);
    const call = history.create(request, way.name);
    try {
      call.acknowledged(await way.create(request, options));
      return undefined;
    } catch (error) {
      const failure = failureOf(error);
      call.failed(failure);
      return failure;
    }
  }

  /** Creates a record with a request id, until it is stored. */
  async function createSafely(own: Random): Promise<void> {
    const request = aRequest(own, { requestId: own.pick([v4, v7])() });
    const isTwice = own.int(0, 19) === 0;
    const twin = isTwice ? send(request, own) : undefined;
    let failure = await send(request, own, impatience(own));
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
    const request = aRequest(own, {});
    const isRepeated = own.int(0, 1) === 0;
    for (;;) {
      const failure = await send(request, own, impatience(own));
      if (failure === undefined) return;
      await delay(50);
      if (failure.id !== undefined) await look(failure.id, own);
      const isRefused = ["OVERLOADED", "STORE_UNAVAILABLE"].includes(failure.reason);
      if (!isRefused || !isRepeated || isOver) return;
    }
  }

  /** Repeats a create that was acknowledged, or its request id with other content. */
  async function createAgain(own: Random): Promise<void> {
    if (remembered.length === 0) return;
    const request = own.pick(remembered);
    if (own.int(0, 2) > 0) {
      await send(request, own);
      return;
    }
    await send(aRequest(own, { requestId: request.requestId as string }), own);
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
    const way = await pickWay(own);
    const call = history.get(id, way.name);
    await way.get(id).then(call.found, (error) => call.failed(failureOf(error)));
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

  /** Walks all pages, by any way and service each. */
  async function walk(own: Random): Promise<void> {
    const size = own.pick([7, 100, 1_000]);
    const call = history.walk(`pages of ${size}`);
    for (let token: string | undefined = ""; token !== undefined; ) {
      const way = await pickWay(own);
      try {
        const page = await way.page(size, token);
        for (const investor of page.investors) call.saw(investor);
        token = page.nextPageToken || undefined;
      } catch (error) {
        call.failed(failureOf(error));
        await delay(50);
      }
      if (isOver) return;
    }
    call.ended();
    await delay(own.int(0, 200));
  }

  async function list(own: Random): Promise<void> {
    const way = await pickWay(own, ({ list }) => list !== undefined);
    const call = history.walk("whole list");
    try {
      for (const investor of (await way.list?.()) ?? []) call.saw(investor);
      call.ended();
    } catch (error) {
      call.failed(failureOf(error));
    }
    await delay(own.int(50, 300));
  }

  const start = (count: number, work: (own: Random) => Promise<void>) =>
    Array.from({ length: count }, async () => {
      const own = createRandom(random.int(0, 2 ** 31 - 1));
      while (!isOver) await work(own);
    });
  const working = [
    ...start(creators, create),
    ...start(getters, get),
    ...start(walkers, walk),
    ...start(1, list),
  ];

  return {
    history,
    services,
    async acknowledgements(count) {
      const wanted = history.acknowledged + count;
      const end = performance.now() + 60_000;
      while (history.acknowledged < wanted) {
        if (performance.now() > end) {
          history.expectSound();
          throw new Error("creates are not acknowledged any more");
        }
        await delay(5);
      }
    },
    async stop() {
      isOver = true;
      await Promise.all(working);
    },
  };
}

/**
 * Reads all that is there, in every way, from a service that is well.
 *
 * @throws {Error} a call fails
 */
export async function readBack(history: History, service: Service): Promise<void> {
  for (const way of waysTo(service)) {
    const pages = history.walk(`at the end, pages by ${way.name}`);
    for (let token: string | undefined = ""; token !== undefined; ) {
      const page = await way.page(1_000, token);
      for (const investor of page.investors) pages.saw(investor);
      token = page.nextPageToken || undefined;
    }
    pages.ended();
    if (way.list !== undefined) {
      const whole = history.walk("at the end, whole list");
      for (const investor of await way.list()) whole.saw(investor);
      whole.ended();
    }
    // The newest are the likeliest to be lost.
    const ids = history.visible.slice(-500);
    for (let i = 0; i < ids.length; i += gettersAtEnd) {
      await Promise.all(
        ids.slice(i, i + gettersAtEnd).map(async (id) => {
          const call = history.get(id, `at the end, ${way.name}`);
          await way.get(id).then(call.found, (error) => {
            call.failed(failureOf(error));
            history.expectSound();
            throw error;
          });
        }),
      );
    }
  }
}

function failureOf(error: unknown): FailedCall {
  if (error instanceof CallError) return error.failure;
  throw error;
}

function aRequest(random: Random, changes: CreateRequest): CreateRequest {
  const type = random.pick([InvestorType.INDIVIDUAL, InvestorType.INSTITUTION]);
  const city = random.pick(["", "Łódź", "𝔘𝔫𝔦 \u{1F600} \"'\\;", "x".repeat(256)]);
  return aCreate({ type, city, ...changes });
}

/** Some callers do not wait. */
function impatience(random: Random): CallOptions {
  const choice = random.int(0, 29);
  if (choice === 0) return { leavesAfterMs: random.int(1, 30) };
  if (choice === 1) return { deadlineMs: random.int(1, 30) };
  return {};
}
