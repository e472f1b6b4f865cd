import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it, onTestFinished } from "vitest";
import { aCreate } from "../support/records.ts";
import {
  lockDatabase,
  metric,
  type Service,
  startService,
  untilWritten,
  waitFor,
} from "../support/service.ts";

/** A connection of the service, and all that it has sent so far. */
function openHttp1({ httpPort }: Service): { socket: Socket; received(): string } {
  const socket = connect(httpPort, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  let text = "";
  socket.setEncoding("latin1").on("data", (chunk) => {
    text += chunk;
  });
  return { socket, received: () => text };
}

/** A request as it is on the wire. */
function post(path: string, value: unknown, ...fields: string[]): string {
  const body = JSON.stringify(value);
  const all = ["host: localhost", "content-type: application/json", ...fields];
  const head = [`POST ${path} HTTP/1.1`, ...all, `content-length: ${Buffer.byteLength(body)}`];
  return `${head.join("\r\n")}\r\n\r\n${body}`;
}

const create = "/investor.v1.InvestorService/CreateInvestor";
const record = { ...aCreate(), type: "INVESTOR_TYPE_INDIVIDUAL" };
const inFlight = (service: Service) =>
  metric(service, "investor_records_rpc_server_calls_in_flight");

describe("requests in a row on one connection", () => {
  it("may have bodies in chunks", async () => {
    const { socket, received } = openHttp1(await startService());
    const body = JSON.stringify(record);
    const head = `POST ${create} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n`;
    const chunks = `${Buffer.byteLength(body).toString(16)}\r\n${body}\r\n0\r\n\r\n`;
    socket.write(`${head}transfer-encoding: chunked\r\n\r\n${chunks}`.repeat(5));
    await waitFor(async () => received().match(/HTTP\/1.1 200 /g)?.length === 5);
  });

  it("are refused for their size one by one", async () => {
    const { socket, received } = openHttp1(await startService());
    const tooLarge = post(create, { ...record, city: "x".repeat(100_000) });
    socket.write(`${post(create, record)}${tooLarge}`);
    await waitFor(async () => /HTTP\/1.1 200 .*HTTP\/1.1 429 /s.test(received()));
  });
});

describe("requests before a CONNECT", () => {
  it("give back their slots, though Node.js takes the connection away", async () => {
    const service = await startService();
    const release = lockDatabase(service);
    for (let i = 0; i < 10; i += 1) {
      const { socket } = openHttp1(service);
      socket.write(`${post(create, record).repeat(3)}CONNECT x HTTP/1.1\r\nhost: x\r\n\r\n`);
      await once(socket, "close");
    }
    release();
    await waitFor(async () => (await inFlight(service)) === 0);
  });
});

describe("a client that waits to be asked for the body of its request", () => {
  it("is asked once the call is admitted", async () => {
    const service = await startService();
    const { socket, received } = openHttp1(service);
    const [head, body] = post(create, record, "expect: 100-continue").split("\r\n\r\n");
    socket.write(`${head}\r\n\r\n`);
    await waitFor(async () => received() === "HTTP/1.1 100 Continue\r\n\r\n");
    socket.write(String(body));
    await waitFor(async () => received().includes("HTTP/1.1 200 OK"));
    expect(received().toLowerCase()).not.toContain("connection: close");
  });

  it("is not asked if the call is refused, and its connection is closed", async () => {
    const service = await startService({ MAX_IN_FLIGHT: "1" });
    const release = lockDatabase(service);
    const first = openHttp1(service);
    first.socket.write(post(create, record));
    await waitFor(async () => (await inFlight(service)) === 1);
    const { socket, received } = openHttp1(service);
    const [head] = post(create, record, "expect: 100-continue").split("\r\n\r\n");
    socket.write(`${head}\r\n\r\n`);
    await once(socket, "close");
    expect(received()).toMatch(/^HTTP\/1.1 503 /);
    release();
    await waitFor(async () => first.received().includes("HTTP/1.1 200 OK"));
  });
});

describe("a connection that is idle when the service shuts down", () => {
  // What comes later than a tenth of a second is too late, and a busy machine may take longer.
  it("is served with what was on its way", { retry: 2 }, async () => {
    const service = await startService();
    const { socket, received } = openHttp1(service);
    const closed = new Promise((resolve) => socket.once("close", resolve));
    const [head, body] = post(create, record).split("\r\n\r\n");
    socket.write(`${head}\r\n`);
    await delay(200);
    service.child.kill("SIGTERM");
    await untilWritten(service, "shutting down");
    await delay(20);
    socket.write(`\r\n${body}`);
    await closed;
    expect(received()).toMatch(/^HTTP\/1.1 200 [\s\S]*connection: close/i);
    expect(await service.exited).toBe(0);
  });
});
