import {
  create,
  type DescMessage,
  type DescMethodUnary,
  type Message,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import {
  type CreateInvestorRequest,
  type Investor,
  InvestorService,
  type ListInvestorsResponse,
} from "../gen/investor/v1/investor_pb.js";
import { cancelled, InvestorError } from "./error.ts";
import { createRetries, type Outcome } from "./retries.ts";

/** The fields that every record must have. */
type RequiredField = "type" | "country" | "language";

/** The fields that a record may lack. */
type OptionalField = Exclude<keyof CreateInvestorRequest, keyof Message | RequiredField>;

/**
 * The content of a new record; text that is absent is empty. A record that was read can be passed
 * as it is: its id is ignored.
 *
 * A retry with the same `requestId`, a UUID, returns the record that was already stored, even from
 * another process. If absent or empty, the client generates one, which makes its own retries safe.
 */
export type NewInvestor = Pick<CreateInvestorRequest, RequiredField> & {
  [Name in OptionalField]?: CreateInvestorRequest[Name] | undefined;
};

/** Options of one call. */
export interface CallOptions {
  /** Deadline in ms from now, for all attempts; the client's if absent, `Infinity` for none. */
  timeoutMs?: number | undefined;
  /** The most retries; the client's number if absent, 0 for none. */
  retries?: number | undefined;
  /** Cancels the call, which then rejects with CANCELLED. */
  signal?: AbortSignal | undefined;
  /** Headers to send, by name. */
  headers?: Readonly<Record<string, string>> | undefined;
}

/** Defaults for the calls of a client. */
export interface InvestorClientOptions {
  /** Deadline of each call, for all attempts, in ms; 30,000 if absent. */
  timeoutMs?: number | undefined;
  /** The most retries of a call; 10 if absent, 0 for none. */
  retries?: number | undefined;
}

/**
 * The methods of the service. Calls are retried after UNAVAILABLE and DEADLINE_EXCEEDED while the
 * deadline allows it.
 *
 * @throws {InvestorError} a call fails
 * @throws {Error} nothing was sent: the request or an option is invalid, or the client is closed
 */
export interface InvestorClient {
  /** Stores a new record and returns it. */
  createInvestor(investor: NewInvestor, options?: CallOptions): Promise<Investor>;
  /** Returns one record. */
  getInvestor(request: { id: string }, options?: CallOptions): Promise<Investor>;
  /** Returns one page of all records: at most 100 unless `pageSize` says more, up to 1,000. */
  listInvestors(
    request?: { pageSize?: number; pageToken?: string },
    options?: CallOptions,
  ): Promise<ListInvestorsResponse>;
  /**
   * Yields all records, ascending by id, fetching pages as needed. The options apply to each page;
   * the signal also ends the iteration between two records.
   */
  investors(options?: CallOptions): AsyncGenerator<Investor, void, void>;
  /** Rejects further calls; the connection closes once calls in flight have finished. */
  close(): void;
}

/** The content of one attempt. */
export interface Attempt<I extends DescMessage> {
  readonly message: MessageShape<I>;
  /** The message in binary. */
  readonly bytes: Uint8Array;
  readonly headers: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
}

/** A way to reach the service. */
export interface Channel {
  call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    attempt: Attempt<I>,
  ): Promise<Outcome<MessageShape<O>>>;
  /** Called when no call is in flight, and none will follow. */
  close(): void;
}

const maxPageSize = 1_000;

/** Creates a client over a channel. */
export function createClient(
  channel: Channel,
  { timeoutMs = 30_000, retries = 10 }: InvestorClientOptions,
): InvestorClient {
  const runWithRetries = createRetries();
  const link = createLinks();
  let inFlight = 0;
  let isClosing = false;

  async function call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
    options: CallOptions,
  ): Promise<MessageShape<O>> {
    const { input } = method;
    // Errors of later turns have a stack without the caller.
    const { stack } = new Error();
    const message = create(input, request);
    const bytes = encode(input, message);
    const limits = {
      timeoutMs: options.timeoutMs ?? timeoutMs,
      retries: options.retries ?? retries,
    };
    for (const [name, value] of Object.entries(limits)) {
      if (!(value >= 0)) throw new RangeError(`${name} must be a number from 0 on`);
    }
    if (isClosing) throw new Error("the client is closed");
    const { headers = {} } = options;
    const { signal, unlink } = link(options.signal);
    inFlight += 1;
    try {
      return await runWithRetries(
        (ms) => channel.call(method, { message, bytes, headers, timeoutMs: ms, signal }),
        { ...limits, signal, toError: (failure) => new InvestorError(failure, input) },
      );
    } catch (error) {
      if (error instanceof InvestorError) {
        error.stack = `${error}\n${stack?.replace(/^Error.*\n/, "")}`;
      }
      throw error;
    } finally {
      unlink();
      inFlight -= 1;
      closeIfIdle();
    }
  }

  function closeIfIdle(): void {
    if (isClosing && inFlight === 0) channel.close();
  }

  const { method } = InvestorService;
  return {
    createInvestor({ requestId, ...content }, options = {}) {
      const request = { ...content, requestId: requestId || newRequestId() };
      // What is undefined counts as absent.
      type Init = MessageInitShape<typeof method.createInvestor.input>;
      return call(method.createInvestor, request as Init, options);
    },
    getInvestor: ({ id }, options = {}) => call(method.getInvestor, { id }, options),
    listInvestors: (request = {}, options = {}) => call(method.listInvestors, request, options),
    async *investors(options = {}) {
      const { input } = method.listInvestors;
      const { signal } = options;
      let pageToken = "";
      do {
        const request = { pageSize: maxPageSize, pageToken };
        const page = await call(method.listInvestors, request, options);
        for (const investor of page.investors) {
          if (signal?.aborted) throw new InvestorError(cancelled(signal), input);
          yield investor;
        }
        pageToken = page.nextPageToken;
      } while (pageToken !== "");
    },
    close() {
      isClosing = true;
      closeIfIdle();
    },
  };
}

/**
 * Gives each call its own signal, which aborts with the caller's. However many calls share a
 * caller's signal, it gets one listener: Node.js 20 reports more than ten as a leak.
 */
function createLinks() {
  const linked = new Map<AbortSignal, Set<AbortController>>();

  function abort({ target }: Event): void {
    const signal = target as AbortSignal;
    for (const each of linked.get(signal) ?? []) each.abort(signal.reason);
  }

  return (signal: AbortSignal | undefined) => {
    if (signal === undefined || signal.aborted) return { signal, unlink() {} };
    const own = new AbortController();
    const all = linked.get(signal) ?? new Set();
    if (all.size === 0) signal.addEventListener("abort", abort);
    linked.set(signal, all.add(own));
    return {
      signal: own.signal,
      unlink() {
        all.delete(own);
        if (all.size > 0) return;
        linked.delete(signal);
        signal.removeEventListener("abort", abort);
      },
    };
  };
}

/**
 * Encodes a request, whose fields are all scalar.
 *
 * @throws {Error} text that UTF-8 cannot encode, which `toBinary` would store as U+FFFD
 */
function encode<D extends DescMessage>(desc: D, message: MessageShape<D>): Uint8Array {
  const values: Record<string, unknown> = { ...message };
  for (const field of desc.fields) {
    const value = values[field.localName];
    if (typeof value === "string" && !value.isWellFormed()) {
      throw new Error(`cannot encode ${field} to binary: unpaired surrogate`);
    }
  }
  return toBinary(desc, message);
}

/** A UUIDv7 (RFC 9562); works in insecure browser contexts too, which lack `randomUUID`. */
function newRequestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, (BigInt(Date.now()) << 16n) | 0x7000n | BigInt(view.getUint16(6) & 0xfff));
  view.setUint8(8, 0x80 | (view.getUint8(8) & 0x3f));
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
