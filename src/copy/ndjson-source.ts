import { isUtf8 } from "node:buffer";
import { open, stat } from "node:fs/promises";
import { addAbortSignal, type Readable } from "node:stream";
import type { Investor } from "../../gen/investor/v1/investor_pb.js";
import type { Violation } from "../service/errors.ts";
import { deriveId } from "../service/ids.ts";
import { addViolations, fromMembers, parseObject, toMember } from "../service/plain-json.ts";
import { findViolations, toInvestor } from "../service/validation.ts";
import { isUuid } from "../uuid.ts";
import type { Source } from "./copier.ts";

/** How an {@link openNdjsonSource NDJSON source} is read. */
export interface NdjsonOptions {
  /** The principal that ids are derived for from request ids. */
  principal: string;
  /** Ends a wait for more. */
  signal: AbortSignal;
}

/** A line is invalid; the lines before it are stored. */
export class LineError extends Error {
  override name = "LineError";
}

/** The most bytes that a line may have; the largest valid record takes some 32 KiB. */
const maxLineBytes = 64 * 1024;
const chunkBytes = 256 * 1024;
const lineFeed = 0x0a;
const nothing = Buffer.alloc(0);
const byteOrderMark = Buffer.of(0xef, 0xbb, 0xbf);

/**
 * Opens a file of records in plain JSON, one a line (https://github.com/ndjson/ndjson-spec). Empty
 * lines count and are passed over, a byte order mark is too.
 *
 * @throws {Error} if it cannot be opened
 */
export async function openNdjsonSource(path: string, options: NdjsonOptions): Promise<Source> {
  // A named pipe would be waited for where no signal ends it.
  const found = await stat(path);
  if (!found.isFile()) throw new Error("it is not a file: pass it as standard input");
  const stream = (await open(path)).createReadStream({ highWaterMark: chunkBytes });
  const partRead = () => Math.min(1, stream.bytesRead / Math.max(1, found.size));
  return { ...createNdjsonSource(stream, options), partRead };
}

/** The same from a stream, such as standard input. */
export function createNdjsonSource(stream: Readable, { principal, signal }: NdjsonOptions): Source {
  // If the signal has aborted before, nothing listens yet for the error that reads will throw.
  stream.on("error", () => {});
  addAbortSignal(signal, stream);

  async function* read() {
    let lines = 0;
    let isEmpty = true;
    let rest = nothing;

    function take(line: Buffer, records: Investor[]): void {
      lines += 1;
      const isMarked = lines === 1 && line.subarray(0, 3).equals(byteOrderMark);
      const text = isMarked ? line.subarray(3) : line;
      try {
        const record = readLine(text, principal);
        if (record !== undefined) records.push(record);
      } catch (error) {
        throw new LineError(`line ${lines}: ${(error as Error).message}`);
      }
    }

    function takeLines(chunk: Buffer, records: Investor[]): void {
      let start = 0;
      for (;;) {
        const end = chunk.indexOf(lineFeed, start);
        if (end === -1) break;
        const line = chunk.subarray(start, end);
        take(rest.length === 0 ? line : Buffer.concat([rest, line]), records);
        rest = nothing;
        start = end + 1;
      }
      rest = Buffer.concat([rest, chunk.subarray(start)]);
      // Refuses the line before the rest of it is read.
      if (rest.length > maxLineBytes) take(rest, records);
    }

    async function* chunks() {
      yield* stream as AsyncIterable<Buffer>;
      // The last line need not be ended.
      if (rest.length > 0) yield Buffer.of(lineFeed);
    }

    for await (const chunk of chunks()) {
      const records: Investor[] = [];
      try {
        takeLines(chunk, records);
      } finally {
        // Those before an invalid line are stored.
        if (records.length > 0) yield records;
      }
      isEmpty &&= records.length === 0;
    }
    if (isEmpty) throw new Error("it holds no records");
  }

  return {
    batches: read(),
    partRead: () => undefined,
    async close() {
      stream.destroy();
    },
  };
}

/**
 * The record of a line, or undefined of an empty one.
 *
 * @throws {Error} with all that is wrong, without any value
 */
function readLine(line: Buffer, principal: string): Investor | undefined {
  if (line.length > maxLineBytes) throw new Error(`is longer than ${maxLineBytes} bytes`);
  if (!isUtf8(line)) throw new Error("is not UTF-8");
  const text = line.toString();
  if (text.trim() === "") return undefined;
  const object = parseObject(text);
  if (object === undefined) throw new Error("is not a JSON object, or repeats a member");
  const { id, requestId, ...members } = object;
  const { request, violations } = fromMembers(members);
  if (typeof requestId === "string") request.requestId = requestId;
  const others = findViolations(request).map((each) => ({ ...each, field: toMember(each.field) }));
  const all = [...checkIds(id, requestId), ...addViolations(violations, others)];
  if (all.length > 0) throw new Error(all.map(inWords).join("; "));
  const investor = toInvestor(request);
  investor.id = typeof id === "string" ? id.toLowerCase() : deriveId(principal, String(requestId));
  return investor;
}

function checkIds(id: unknown, requestId: unknown): Violation[] {
  const wrong = (field: string, description: string) => [{ field, description }];
  if (id === undefined) {
    if (requestId === undefined) return wrong("id", "or requestId is required");
    return typeof requestId === "string" ? [] : wrong("requestId", "must be a string");
  }
  if (requestId !== undefined) return wrong("requestId", "must not be given beside id");
  return typeof id === "string" && isUuid(id) ? [] : wrong("id", "must be a UUID");
}

function inWords({ field, description }: Violation): string {
  // One that no record has can be anything.
  const name = /^\w{1,32}$/.test(field) ? field : JSON.stringify(field.slice(0, 32));
  return `${name} ${description}`;
}
