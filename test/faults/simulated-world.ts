import { type Document, MongoNetworkError, MongoServerSelectionError } from "mongodb";
import type { Random } from "../support/random.ts";
import { type Member, ReplicaSet } from "./simulated-set.ts";

/** Something that happens at a time, or when it is chosen. */
export interface Step {
  readonly label: string;
  readonly due: number;
  readonly isTimer: boolean;
  run(): void;
}

export interface DriverOptions {
  serverSelectionTimeoutMS: number;
  waitQueueTimeoutMS: number;
}

/** The driver's `Db.command`. */
export type Command = (command: Document, options: { signal: AbortSignal }) => Promise<Document>;

/** The steps to come, the clock, and all that takes part. */
export class World {
  now = 0;
  random: Random;
  readonly set: ReplicaSet;
  readonly clients: SimulatedClient[] = [];
  readonly #mutate: (command: Command) => Command;
  steps: Step[] = [];

  /** @param electable how many members can become primary */
  constructor(random: Random, electable: number, mutate: (command: Command) => Command) {
    this.random = random;
    this.#mutate = mutate;
    this.set = new ReplicaSet(this, electable);
  }

  /** A client of a process of its own. */
  connect(options: DriverOptions) {
    const client = new SimulatedClient(this, options, this.#mutate);
    this.clients.push(client);
    return client;
  }

  timer(ms: number, run: () => void, label = "timer"): Step {
    return this.#add({ label, due: this.now + ms, isTimer: true, run });
  }

  /** Something on its way: most of it is fast, some is as slow as TCP lets it be. */
  message(label: string, run: () => void): Step {
    const { random } = this;
    const kind = random.int(1, 100);
    const ms = random.int(0, kind <= 85 ? 5 : kind <= 95 ? 100 : 2_000);
    return this.#add({ label, due: this.now + ms, isTimer: false, run });
  }

  cancel(step: Step): void {
    this.steps = this.steps.filter((each) => each !== step);
  }

  /** What may happen next without time going by. */
  actions(): [string, () => void][] {
    return [...this.set.actions(), ...this.clients.flatMap((client) => client.actions())];
  }

  take(step: Step): void {
    this.cancel(step);
    this.now = Math.max(this.now, step.due);
    step.run();
  }

  #add(step: Step): Step {
    this.steps.push(step);
    return step;
  }
}

/**
 * The driver as MongoDB's specifications have it (server discovery and monitoring, server
 * selection, connection pools): it sends to the member that it believes to be primary, of whose
 * term it never goes back (`electionId`), forgets that member after a network error and after
 * the code of a state change, and waits until it finds another. It says by
 * `MongoServerSelectionError` or `MongoWaitQueueTimeoutError` that it has sent nothing. A
 * signal that aborts closes the connection. What was sent is not taken back by any of this.
 */
export class SimulatedClient {
  readonly db = () => ({ command: this.#command });
  readonly #world: World;
  readonly #options: DriverOptions;
  readonly #command: Command;
  readonly #name: string;
  readonly #connections = new Set<{ label: string; member: Member; cut(): void }>();
  #primary: Member | undefined;
  #term = 0;
  /** How many commands of each kind were sent. */
  readonly #sent = new Map<string, number>();
  #waiting: (() => void)[] = [];
  /** All that its process was told, in order. */
  readonly heard: string[] = [];

  constructor(world: World, options: DriverOptions, mutate: (command: Command) => Command) {
    this.#world = world;
    this.#options = options;
    this.#name = `client ${world.clients.length}`;
    this.#command = mutate((command, { signal }) => this.#send(command, signal));
  }

  async connect(): Promise<void> {
    await this.#select();
  }

  async close(): Promise<void> {}

  get isBusy(): boolean {
    return this.#connections.size > 0;
  }

  /** Who it believes to be primary, what it waits for, and all that it was told. */
  get state(): unknown[] {
    const open = Array.from(this.#connections, ({ label }) => label);
    return [this.#primary?.index, this.#waiting.length, open.sort(), [...this.heard].sort()];
  }

  /** What its monitors may find. */
  actions(): [string, () => void][] {
    return this.#world.set.members
      .filter((each) => each.isUp && each.isPrimary)
      .filter((each) => each !== this.#primary && each.term >= this.#term)
      .map((each) => [`${this.#name} finds ${each.index}`, () => this.#discover(each)]);
  }

  /** Breaks its connections, or those to one member. */
  cut(member?: Member): void {
    for (const each of this.#connections)
      if (member === undefined || each.member === member) each.cut();
  }

  #discover(member: Member): void {
    this.#primary = member;
    this.#term = member.term;
    for (const wake of this.#waiting.splice(0)) wake();
  }

  #select(signal?: AbortSignal): Promise<Member> {
    return new Promise((resolve, reject) => {
      const settle = () => {
        this.#world.cancel(timer);
        signal?.removeEventListener("abort", onAbort);
        this.#waiting = this.#waiting.filter((each) => each !== settle);
        if (this.#primary) resolve(this.#primary);
        else reject(signal?.aborted ? signal.reason : notSelected());
      };
      const onAbort = () => settle();
      const timer = this.#world.timer(this.#options.serverSelectionTimeoutMS, settle);
      signal?.addEventListener("abort", onAbort);
      if (this.#primary) settle();
      else this.#waiting.push(settle);
    });
  }

  async #send(command: Document, signal: AbortSignal): Promise<Document> {
    const world = this.#world;
    const member = await this.#select(signal);
    if (world.random.int(1, 50) === 50) {
      await new Promise<void>((resolve) => {
        world.timer(this.#options.waitQueueTimeoutMS, resolve);
      });
      throw Object.assign(new Error("no connection"), { name: "MongoWaitQueueTimeoutError" });
    }
    const { boots } = member;
    const what = command.hello ? "hello" : command.insert ? "insert" : command.readConcern.level;
    const number = (this.#sent.get(what) ?? 0) + 1;
    this.#sent.set(what, number);
    const label = `${this.#name} ${what} ${number} at ${member.index}`;
    return new Promise((resolve, reject) => {
      const settle = (outcome: Document | Error) => {
        if (!this.#connections.delete(connection)) return;
        signal.removeEventListener("abort", onAbort);
        this.heard.push(`${label} ${summary(outcome)}`);
        if (this.#primary === member && tellsOfChange(outcome)) this.#primary = undefined;
        if (outcome instanceof Error) reject(outcome);
        else resolve(outcome);
      };
      const onAbort = () => settle(signal.reason);
      const connection = {
        label,
        member,
        cut: () => settle(new MongoNetworkError("the connection is cut")),
      };
      this.#connections.add(connection);
      signal.addEventListener("abort", onAbort);
      const reply = (outcome: Document | Error) => {
        if (member.boots === boots)
          world.message(`${label} reply ${summary(outcome)}`, () => settle(outcome));
      };
      world.message(label, () => {
        if (member.boots === boots) world.set.execute(label, member, command, reply);
        else connection.cut();
      });
    });
  }
}

const stateChanges = [91, 189, 10_107, 11_600, 11_602, 13_435];

function tellsOfChange(outcome: Document | Error): boolean {
  const isState = "code" in outcome && stateChanges.includes(Number(outcome.code));
  return isState || outcome instanceof MongoNetworkError;
}

function notSelected(): MongoServerSelectionError {
  const reason = { error: undefined } as unknown as ConstructorParameters<
    typeof MongoServerSelectionError
  >[1];
  return new MongoServerSelectionError("no primary", reason);
}

function summary(outcome: Document | Error): string {
  if (outcome instanceof Error) return String(outcome);
  const { cursor, writeErrors } = outcome;
  const found = cursor?.firstBatch.map((each: Document) => each.firstName);
  return JSON.stringify(found ?? writeErrors ?? []);
}
