import { type Document, MongoServerError, MongoWriteConcernError } from "mongodb";
import type { World } from "./simulated-world.ts";

/** What stands in a log: a document, or nothing (a no-op). */
interface Entry {
  readonly term: number;
  readonly document: Document | undefined;
}

interface Wait {
  readonly label: string;
  readonly length: number;
  done(): void;
  fail(code: number): void;
}

type Reply = (outcome: Document | Error) => void;

/** The codes of a server that is or was about to give up being primary, or to shut down. */
const stateChanges = [91, 189, 11_600, 11_602];
const notWritablePrimary = 10_107;

/** A member that bears data. */
export class Member {
  readonly index: number;
  readonly isElectable: boolean;
  term = 1;
  isPrimary = false;
  isUp = true;
  /** Counts restarts: what was sent to an earlier one does not arrive. */
  boots = 0;
  log: Entry[] = [];
  /** How much of the log it knows to be committed. */
  committed = 0;
  /** How much of the log is in the journal. */
  durable = 0;
  /** As a primary: how much of the log each member has reported, in the primary's own term. */
  reported: number[] = [];
  waits: Wait[] = [];

  constructor(index: number, isElectable: boolean) {
    this.index = index;
    this.isElectable = isElectable;
  }
}

/**
 * A replica set of three. It replicates, commits and elects as MongoStaticRaft does, MongoDB's
 * own TLA+ model (Schultz, Dardik, Tripakis: Design and Analysis of a Logless Dynamic
 * Reconfiguration Protocol, 2021): members pull from whoever is ahead; a candidate needs votes
 * of a majority, none of which has a newer log; an entry is committed once a majority has it in
 * the journal and is in the term of its primary, whose own it must be; what lies before it is
 * committed with it; members whose logs part from one of a later term roll back.
 *
 * Beyond that, from MongoDB's manual and source:
 * - A new primary writes a no-op in its term before anything else. It knows of the commit point
 *   only what it had pulled by then, and read concern `majority` shows no more.
 * - A deposed one that does not know it serves reads, and takes writes that cannot commit.
 * - An insert is applied at the primary first. Then its reply waits for all that the log held,
 *   duplicates included, up to `maxTimeMS`; the reply has a write concern error if it ends.
 * - A `linearizable` read reads all that the member has, then writes a no-op and waits for it;
 *   it fails if the member was deposed in between.
 */
export class ReplicaSet {
  readonly members: Member[];
  /** The members that reach no other. */
  readonly isolated = new Set<Member>();
  /** The contents of each id that were ever committed. */
  readonly committed: Document[] = [];
  readonly #world: World;

  /** @param electable how many members can become primary; the first one is */
  constructor(world: World, electable: number) {
    this.#world = world;
    this.members = [0, 1, 2].map((index) => new Member(index, index < electable));
    this.elect(this.members[0] as Member);
  }

  /** What members may do next by themselves. */
  actions(): [string, () => void][] {
    const actions: [string, () => void][] = [];
    for (const member of this.members) {
      if (!member.isUp) continue;
      if (member.durable < member.log.length) {
        actions.push([`${member.index} journals`, () => this.#journal(member)]);
      }
      for (const source of this.members) {
        if (member === source) continue;
        if (this.#areLinked(member, source) && gains(member, source)) {
          actions.push([`${member.index} pulls ${source.index}`, () => this.#pull(member, source)]);
        }
      }
    }
    return actions;
  }

  /** Lets a member ask those that it reaches for their votes. */
  elect(candidate: Member, hearing = this.members): void {
    if (!candidate.isUp || !candidate.isElectable) return;
    const term = candidate.term + 1;
    const asked = hearing.filter((each) => this.#areLinked(candidate, each));
    const votes = asked.filter((each) => term > each.term && !isAhead(each, candidate));
    for (const each of asked) this.#learn(each, term);
    if (votes.length < 2) return;
    candidate.isPrimary = true;
    candidate.reported = [];
    this.#append(candidate, undefined);
  }

  /** Ends a process; what is not in the journal may be lost. */
  crash(member: Member): void {
    const { random } = this.#world;
    member.isUp = false;
    member.isPrimary = false;
    member.boots += 1;
    member.waits = [];
    member.log.length = random.int(member.durable, member.log.length);
    member.durable = member.log.length;
    member.committed = random.int(0, Math.min(member.committed, member.log.length));
  }

  /** Executes a command that has arrived. */
  execute(label: string, member: Member, command: Document, reply: Reply): void {
    if (command.hello) reply(this.#hello(member));
    else if (!member.isPrimary) reply(serverError(command.insert ? notWritablePrimary : 13_435));
    else if (command.insert) this.#insert(label, member, command, reply);
    else if (command.readConcern.level === "majority") {
      reply({ cursor: { firstBatch: select(member.log.slice(0, member.committed), command) } });
    } else this.#readLinearizable(label, member, command, reply);
  }

  #insert(label: string, member: Member, { documents, maxTimeMS }: Document, reply: Reply): void {
    const { random } = this.#world;
    // An attempt to step down ends what runs, also if the member stays primary.
    const isInterrupted = random.int(1, 30) === 30;
    const code = random.pick(stateChanges);
    const end = isInterrupted ? random.int(0, documents.length) : documents.length;
    const writeErrors: Document[] = [];
    for (const [index, document] of (documents as Document[]).entries()) {
      if (index >= end) writeErrors.push({ index, code, errmsg: "interrupted" });
      else if (member.log.some((entry) => entry.document && hasSameId(entry.document, document))) {
        writeErrors.push({ index, code: 11_000, errmsg: "duplicate key" });
      } else this.#append(member, document);
    }
    if (isInterrupted && random.int(0, 1) === 0) {
      reply(serverError(code));
      return;
    }
    const result = { ok: 1, n: documents.length - writeErrors.length, writeErrors };
    this.#wait(member, maxTimeMS, {
      label: `${label} ${JSON.stringify(writeErrors)}`,
      done: () => reply(result),
      fail(code) {
        const writeConcernError = { code, errmsg: "waiting for replication ended" };
        reply(new MongoWriteConcernError({ ...result, writeConcernError }));
      },
    });
  }

  #readLinearizable(label: string, member: Member, command: Document, reply: Reply): void {
    const firstBatch = select(member.log, command);
    const { term, boots } = member;
    const read = `${label} ${firstBatch.map((each) => each.firstName)}`;
    this.#world.message(`no-op in term ${term} for ${read}`, () => {
      if (member.boots !== boots) return;
      if (!member.isPrimary || member.term !== term) return reply(serverError(notWritablePrimary));
      this.#append(member, undefined);
      this.#wait(member, command.maxTimeMS, {
        label: read,
        done: () => reply({ cursor: { firstBatch } }),
        fail: (code) => reply(serverError(code)),
      });
    });
  }

  #hello({ isPrimary, term, log, committed }: Member): Document {
    const t = log.at(-1)?.term;
    return {
      setName: "simulated",
      hosts: this.members.filter((each) => each.isElectable).map(({ index }) => `m${index}`),
      isWritablePrimary: isPrimary,
      electionId: term,
      lastWrite: { opTime: { t }, majorityOpTime: { t: log[committed - 1]?.term } },
    };
  }

  /** Waits until all that the log of a primary holds is committed. */
  #wait(member: Member, limitMs: number, { label, done, fail }: Omit<Wait, "length">): void {
    const end = (settle: () => void) => {
      this.#world.cancel(timer);
      member.waits = member.waits.filter((each) => each !== wait);
      settle();
    };
    const wait: Wait = {
      label,
      length: member.log.length,
      done: () => end(done),
      fail: (code) => end(() => fail(code)),
    };
    const timer = this.#world.timer(limitMs, () => wait.fail(50));
    member.waits.push(wait);
    this.#commit(member);
  }

  #append(primary: Member, document: Document | undefined): void {
    primary.log.push({ term: primary.term, document });
    if (this.#world.random.int(0, 1) === 0) this.#journal(primary);
  }

  #journal(member: Member): void {
    member.durable = member.log.length;
    this.#report(member);
  }

  #pull(member: Member, source: Member): void {
    this.#learn(member, source.term);
    this.#learn(source, member.term);
    if (isAhead(source, member)) {
      const common = commonLength(member, source);
      if (common < member.committed) throw new Error("what is committed is rolled back");
      const end = this.#world.random.int(0, 1) === 0 ? source.log.length : common + 1;
      member.log = source.log.slice(0, Math.max(end, common));
      member.durable = Math.min(member.durable, common);
      if (this.#world.random.int(0, 1) === 0) member.durable = member.log.length;
    }
    if (commonLength(member, source) === member.log.length) {
      const committed = Math.min(source.committed, member.log.length);
      member.committed = Math.max(member.committed, committed);
    }
    this.#report(member);
  }

  /** Tells the primary of a member's term what the member has in its journal. */
  #report(member: Member): void {
    for (const primary of this.members) {
      if (!primary.isPrimary || primary.term !== member.term) continue;
      // One entry of the primary's term is enough: what lies before it is the same.
      if (member.log[member.durable - 1]?.term !== primary.term) continue;
      if (!this.#areLinked(primary, member)) continue;
      primary.reported[member.index] = member.durable;
      this.#commit(primary);
    }
  }

  #commit(primary: Member): void {
    const byLength = this.members.map(({ index }) => primary.reported[index] ?? 0).sort(ascending);
    const length = byLength[1] as number;
    for (const { document } of primary.log.slice(primary.committed, length)) {
      if (document) this.committed.push(document);
    }
    primary.committed = Math.max(primary.committed, length);
    for (const wait of primary.waits) if (wait.length <= primary.committed) wait.done();
  }

  /** Takes note of a term; whoever was primary in an earlier one steps down. */
  #learn(member: Member, term: number): void {
    if (member.term >= term) return;
    member.term = term;
    member.isPrimary = false;
    const code = this.#world.random.pick([notWritablePrimary, ...stateChanges]);
    for (const wait of member.waits) wait.fail(code);
  }

  #areLinked(a: Member, b: Member): boolean {
    return a === b || (a.isUp && b.isUp && !this.isolated.has(a) && !this.isolated.has(b));
  }
}

/** Whether pulling changes anything. */
function gains(member: Member, source: Member): boolean {
  if (member.term !== source.term || isAhead(source, member)) return true;
  const isSame = commonLength(member, source) === member.log.length;
  return isSame && Math.min(source.committed, member.log.length) > member.committed;
}

/** Whether the log of one is newer than that of another. */
function isAhead(a: Member, b: Member): boolean {
  const terms = (a.log.at(-1)?.term ?? 0) - (b.log.at(-1)?.term ?? 0);
  return terms > 0 || (terms === 0 && a.log.length > b.log.length);
}

function commonLength(a: Member, b: Member): number {
  const parts = a.log.findIndex((entry, i) => entry !== b.log[i]);
  return parts === -1 ? a.log.length : parts;
}

function select(log: Entry[], { filter, limit }: Document): Document[] {
  const { $in, $gt, $gte } = filter._id ?? {};
  const wanted = (document: Document) => {
    const id = hex(document);
    if ($in)
      return $in.some((key: Document) => Buffer.compare(key.buffer, document._id.buffer) === 0);
    if ($gt) return id > $gt.toString("hex");
    if ($gte) return id >= $gte.toString("hex");
    return !filter._id || id === filter._id.toString("hex");
  };
  const found = log.flatMap(({ document }) => (document && wanted(document) ? [document] : []));
  return found.sort((a, b) => (hex(a) < hex(b) ? -1 : 1)).slice(0, limit);
}

function hasSameId(a: Document, b: Document): boolean {
  return hex(a) === hex(b);
}

function hex(document: Document): string {
  return document._id.toString("hex");
}

function ascending(a: number, b: number): number {
  return a - b;
}

/** A reply with which the command has failed, as the driver throws it. */
export function serverError(code: number): MongoServerError {
  return new MongoServerError({ ok: 0, code, errmsg: `simulated ${code}` });
}
