import { isUtf8 } from "node:buffer";
import { open, stat } from "node:fs/promises";
import type { Readable } from "node:stream";
import { setImmediate } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { CreateInvestorRequestSchema, type Investor } from "../../gen/investor/v1/investor_pb.js";
import { deriveId, isUuid } from "../investor/ids.ts";
import { findViolations, toInvestor, type Violation } from "../investor/investor.ts";
import { addViolations, fromMembers, parseObject } from "../investor/json.ts";
import { describeViolations, type Source, type Tally } from "./source-and-target.ts";

/** The longest line, in bytes; the largest valid record takes about 32 KiB. */
const maxLineBytes = 64 * 1024;

/** How many bytes of a file to read, and sort the records of, at once. */
const chunkBytes = 16 * 1024 * 1024;

const batchSize = 1_000;

const lineFeed = 10;

/**
 * Opens a file of records in plain JSON, one per line (https://github.com/ndjson/ndjson-spec), at
 * its present size. Empty lines are counted but skipped; a byte order mark is skipped.
 *
 * @param tally told of each line that is not a record
 * @throws {Error} the file cannot be opened
 */
export async function openNdjsonSource(path: string, tally: Tally): Promise<Source> {
  const found = await stat(path);
  // Opening a named pipe would block, beyond the reach of any signal.
  if (!found.isFile()) throw new Error("it is not a file: pass it as standard input");
  const options = { highWaterMark: chunkBytes, end: Math.max(1, found.size) - 1 };
  const stream = (await open(path)).createReadStream(options);
  return readRecords(stream, tally);
}

/** Like {@link openNdjsonSource}, from a stream such as standard input. */
export async function* readRecords(stream: Readable, tally: Tally): Source {
  let count = 0;
  let isEmpty = true;
  for await (const lines of splitLines(stream)) {
    const records: Investor[] = [];
    for (const line of lines) {
      count += 1;
      try {
        const record = readLine(line, count === 1);
        if (record !== undefined) records.push(record);
      } catch (error) {
        tally.leaveOut(`line ${count}`, (error as Error).message);
      }
      // Lets signals and the database's replies be handled.
      if (count % batchSize === 0) await setImmediate();
    }
    // Sorted ids change fewer SQLite pages per batch.
    records.sort((a, b) => Number(a.id > b.id) - Number(a.id < b.id));
    for (let i = 0; i < records.length; i += batchSize) yield records.slice(i, i + batchSize);
    isEmpty &&= records.length === 0;
  }
  if (isEmpty) throw new Error("it holds no records");
}

/** Yields the lines of each chunk. Overlong lines are truncated, but stay recognizably too long. */
async function* splitLines(stream: AsyncIterable<Buffer>): AsyncGenerator<Iterable<Buffer>> {
  let rest: Buffer = Buffer.alloc(0);

  function* split(bytes: Buffer): Generator<Buffer> {
    let start = 0;
    for (let end = bytes.indexOf(lineFeed); end !== -1; end = bytes.indexOf(lineFeed, start)) {
      yield bytes.subarray(start, end);
      start = end + 1;
    }
    rest = bytes.subarray(start, start + maxLineBytes + 1);
  }

  for await (const chunk of stream) yield split(Buffer.concat([rest, chunk]));
  if (rest.length > 0) yield [rest];
}

/**
 * Parses the record in a line; undefined if the line is empty.
 *
 * @throws {Error} with all faults, without any value
 */
function readLine(line: Buffer, isFirst: boolean): Investor | undefined {
  if (line.length > maxLineBytes) throw new Error(`is longer than ${maxLineBytes} bytes`);
  if (!isUtf8(line)) throw new Error("is not UTF-8");
  const text = isFirst ? line.toString().replace(/^\ufeff/, "") : line.toString();
  if (text.trim() === "") return undefined;
  const { id, requestId, ...members } = parseObject(text);
  const { content, violations } = fromMembers(members);
  if (typeof requestId === "string") content.requestId = requestId;
  const others = addViolations(violations, findViolations(content));
  const all = [...findIdViolations(id, requestId), ...others];
  if (all.length > 0) throw new Error(describeViolations(all));
  const investor = toInvestor(create(CreateInvestorRequestSchema, content));
  investor.id = typeof id === "string" ? id.toLowerCase() : deriveId("", String(requestId));
  return investor;
}

function findIdViolations(id: unknown, requestId: unknown): Violation[] {
  const wrong = (key: string, rule: string): Violation[] => [{ in: "body", key, rule }];
  if (id === undefined) {
    if (requestId === undefined || requestId === "") return wrong("id", "or requestId is required");
    return typeof requestId === "string" ? [] : wrong("requestId", "must be a string");
  }
  if (requestId !== undefined) return wrong("requestId", "must not be given beside id");
  return typeof id === "string" && isUuid(id) ? [] : wrong("id", "must be a UUID");
}
