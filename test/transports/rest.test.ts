import { once } from "node:events";
import { request } from "node:http";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { pino } from "pino";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { startHttpServer } from "../../src/transports/http.ts";
import { createRestHandler } from "../../src/transports/rest.ts";
import { openGate } from "../support/gate.ts";
import { anInvestor } from "../support/records.ts";

type List = NonNullable<ServiceImpl<typeof InvestorService>["listInvestors"]>;

async function serve(listInvestors: List) {
  const gate = openGate(100);
  const service = createServiceImplSpec<typeof InvestorService>(InvestorService, { listInvestors });
  const server = await startHttpServer({
    handlers: [createRestHandler({ service, gate, maxMessageBytes: 65_536 })],
    corsOrigins: [],
    refusesForeignPages: false,
    host: "127.0.0.1",
    port: 0,
    requestTimeoutMs: 5_000,
    log: pino({ level: "silent" }),
  });
  onTestFinished(() => server.destroy());
  return { gate, url: `http://127.0.0.1:${server.port}/v1/investors` };
}

const aPage = () => Array.from({ length: 1_000 }, () => anInvestor({ lastName: "x".repeat(200) }));

/** Begins to get the whole list and stops reading at once. */
async function openStream(url: string) {
  const req = request(url).end();
  onTestFinished(() => void req.destroy());
  const [res] = await once(req, "response");
  res.pause();
  return { req, res };
}

describe("the whole list by REST", () => {
  it("is cut off, and never looks complete, if the store fails midway", async () => {
    let pages = 0;
    const { url, gate } = await serve(() => {
      pages += 1;
      if (pages === 3) throw new Error("the store is gone");
      return { investors: aPage(), nextPageToken: "more" };
    });
    const answer = await fetch(url);
    expect(answer.status).toBe(200);
    await expect(answer.text()).rejects.toThrow();
    await expect.poll(() => gate.inFlight).toBe(0);
  });

  it("fails with a status of its own if the store fails at once", async () => {
    const { url } = await serve(() => {
      throw new Error("the store is gone");
    });
    const answer = await fetch(url);
    expect(answer.status).toBe(500);
    expect(await answer.text()).not.toContain("the store is gone");
  });

  it("reads no further than its caller, and stops when the caller leaves", async () => {
    let pages = 0;
    const { url, gate } = await serve(() => {
      pages += 1;
      return { investors: aPage(), nextPageToken: "more" };
    });
    const { req } = await openStream(url);
    let before = -1;
    await expect
      .poll(
        () => {
          const isStill = pages === before;
          before = pages;
          return isStill;
        },
        { interval: 300, timeout: 10_000 },
      )
      .toBe(true);
    // What the sockets of both sides hold, and no more.
    expect(pages).toBeLessThan(60);
    req.destroy();
    await expect.poll(() => gate.inFlight).toBe(0);
  });

  it("has a few places of its own", async () => {
    const { url, gate } = await serve(() => ({ investors: aPage(), nextPageToken: "more" }));
    const streams = await Promise.all(Array.from({ length: 8 }, () => openStream(url)));
    const refused = await fetch(url);
    expect(refused.status).toBe(503);
    expect(await refused.json()).toMatchObject({ reason: "OVERLOADED" });
    expect((await fetch(`${url}?pageSize=1`)).status).toBe(200);
    for (const { req } of streams) req.destroy();
    await expect.poll(() => gate.inFlight).toBe(0);
  });
});
