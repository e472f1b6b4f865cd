/**
 * A caller that asks for much, in a process of its own: `neighbour.ts KIND PORT`. It
 * prints a line once the service is busy with it, and goes on until it is killed.
 */
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { toPath } from "../work.ts";
import { openHttp1 } from "./http1.ts";
import { openGrpc } from "./http2.ts";

const { listInvestors } = InvestorService.method;
const [kind = "", port] = process.argv.slice(2);
const page = Buffer.from(
  toBinary(listInvestors.input, create(listInvestors.input, { pageSize: 1_000 })),
);
const pageCallers = 32;
const resetsASecond = 1_000;

let isBusy = false;
function reportBusy(): void {
  if (!isBusy) console.log("busy");
  isBusy = true;
}

/** Reads the whole list as fast as it comes, again and again. */
async function readLists(): Promise<never> {
  for (;;) {
    const socket = connect(Number(port), "127.0.0.1");
    socket.write("GET /v1/investors HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.once("data", reportBusy).resume();
    await new Promise((resolve) => socket.once("close", resolve));
  }
}

async function readPages(): Promise<never> {
  const { call } = openGrpc(Number(port), toPath(listInvestors));
  for (;;) {
    await call(page);
    reportBusy();
  }
}

/** Pages in an encoding, by Connect. */
async function readPacked(encoding: string): Promise<never> {
  const { call } = openHttp1(Number(port));
  const head = [
    `POST ${toPath(listInvestors)} HTTP/1.1`,
    "host: localhost",
    "content-type: application/proto",
    `accept-encoding: ${encoding}`,
    `content-length: ${page.length}`,
  ];
  const request = Buffer.concat([Buffer.from(`${head.join("\r\n")}\r\n\r\n`), page]);
  for (;;) {
    await call(request);
    reportBusy();
  }
}

/** Begins calls, and resets them at once. */
async function resetCalls(): Promise<never> {
  const { reset } = openGrpc(Number(port), toPath(listInvestors));
  for (;;) {
    for (let n = 0; n < resetsASecond / 100; n += 1) reset(page);
    reportBusy();
    await delay(10);
  }
}

const all = (count: number, work: () => Promise<never>) =>
  Promise.all(Array.from({ length: count }, work));
const neighbours: Record<string, () => Promise<unknown>> = {
  "one whole list": () => all(1, readLists),
  "six whole lists": () => all(6, readLists),
  "pages of 1,000, 32 callers": () => all(pageCallers, readPages),
  "the same by brotli": () => all(pageCallers, () => readPacked("br")),
  "1,000 resets a second": resetCalls,
};
await neighbours[kind]?.();
