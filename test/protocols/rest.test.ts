import { once } from "node:events";
import { request, STATUS_CODES } from "node:http";
import { connect as connectHttp2 } from "node:http2";
import { connect } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { createServiceImplSpec, type ServiceImpl } from "@connectrpc/connect";
import { v7 } from "uuid";
import { describe, expect, it, onTestFinished } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import type { ListenerOptions } from "../../src/http/listener.ts";
import { reserveKey } from "../../src/service/context.ts";
import type { Reason } from "../../src/service/errors.ts";
import { failures } from "../service/failures.ts";
import { startEngine } from "../support/engine.ts";
import { collectGarbage } from "../support/garbage.ts";
import { openGate, promptly } from "../support/gate.ts";
import { expectDocumented, findOperation } from "../support/openapi.ts";
import { anInvestor } from "../support/records.ts";

type Methods = Partial<ServiceImpl<typeof InvestorService>>;
type List = NonNullable<Methods["listInvestors"]>;

async function serve(
  list: List | Methods,
  maxConnectionAgeMs?: number,
  versions: ListenerOptions["versions"] = ["http/1.1", "h2"],
  requestTimeoutMs?: number,
) {
  const gate = openGate(100, requestTimeoutMs);
  const methods = typeof list === "function" ? { listInvestors: list } : list;
  const service = createServiceImplSpec<typeof InvestorService>(InvestorService, methods);
  const server = await startEngine({
    versions,
    services: [service],
    gate,
    maxConnectionAgeMs,
    ...(requestTimeoutMs && { requestTimeoutMs }),
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

describe("a failure by REST", () => {
  // Only a caller who has left is told of CANCELLED.
  const reasons = (Object.keys(failures) as Reason[]).filter((reason) => reason !== "CANCELLED");
  const only: Partial<Record<Reason, string>> = {
    INVESTOR_NOT_FOUND: "getInvestor",
    REQUEST_ID_REUSED: "createInvestor",
    MESSAGE_TOO_LARGE: "createInvestor",
    OUTCOME_UNKNOWN: "createInvestor",
  };

  it.each(reasons)("is documented for %s", async (reason) => {
    for (const error of failures[reason]) {
      const fail = () => {
        throw error;
      };
      const methods = { createInvestor: fail, getInvestor: fail, listInvestors: fail };
      const { url } = await serve(methods);
      for (const [path, init] of [
        [url, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" }],
        [`${url}/${v7()}`, { method: "GET" }],
        [url, { method: "GET" }],
      ] as const) {
        const operation = findOperation(init.method, path);
        if (operation === undefined) throw new Error(`${init.method} ${path} is not documented`);
        if (![undefined, operation.operationId].includes(only[reason])) continue;
        const response = await fetch(path, init);
        const { status, headers } = response;
        const body = await response.json();
        expectDocumented(operation, status, headers.get("content-type"), body);
        expect(body).toMatchObject({ reason, status, title: STATUS_CODES[status] });
        expect(headers.has("retry-after")).toBe(status === 503);
        expect(headers.has("www-authenticate")).toBe(status === 401 || status === 403);
      }
    }
  });

  it("of a call that was cancelled has the title that is common for its status", async () => {
    const { url } = await serve(() => {
      throw failures.CANCELLED[0];
    });
    const response = await fetch(url);
    expect(response.status).toBe(499);
    expect(await response.json()).toMatchObject({ title: "Client Closed Request" });
  });
});

describe("the whole list by REST", () => {
  it("takes no more memory, however many pages it has", async () => {
    const heapAt = new Map<number, number>();
    let pages = 0;
    const { url } = await serve(async (_, { values }) => {
      await values.get(reserveKey)(1_000, 1_000);
      pages += 1;
      if (pages === 20_000 || pages === 40_000) {
        collectGarbage();
        heapAt.set(pages, process.memoryUsage().heapUsed);
      }
      return { investors: [], nextPageToken: pages < 40_000 ? "more" : "" };
    });
    // The stream of a fetch would queue what it is sent.
    const [res] = await once(request(url).end(), "response");
    res.resume();
    await once(res, "end");
    expect([...heapAt.keys()]).toEqual([20_000, 40_000]);
    const grownBytes = (heapAt.get(40_000) ?? 0) - (heapAt.get(20_000) ?? 0);
    expect(grownBytes).toBeLessThan(20_000 * 100);
  });

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
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });

  it("is cut off at the deadline of a page that hangs, and holds no slot any more", async () => {
    const firstPage = { investors: aPage(), nextPageToken: "more" };
    let pages = 0;
    const list = () => {
      pages += 1;
      return pages === 1 ? firstPage : new Promise<typeof firstPage>(() => {});
    };
    const { url, gate } = await serve(list, undefined, undefined, 2_000);
    const response = await fetch(url);
    expect(response.status).toBe(200);
    expect(gate.inFlight).toBe(1);
    await expect(response.text()).rejects.toThrow();
    expect(pages).toBe(2);
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
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
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });

  it("ends with a caller who reads nothing of its last page", async () => {
    const { url, gate } = await serve(() => ({ investors: [anInvestor()] }), undefined, ["h2"]);
    const session = connectHttp2(url, { settings: { initialWindowSize: 0 } });
    onTestFinished(() => session.destroy());
    const stream = session.request({ ":path": "/v1/investors" }).on("error", () => {});
    await once(stream, "response");
    expect(gate.inFlight).toBe(1);
    await expect.poll(() => gate.inFlight, { timeout: 45_000, interval: 500 }).toBe(0);
  });

  it("has a few slots of its own", async () => {
    const { url, gate } = await serve(() => ({ investors: aPage(), nextPageToken: "more" }));
    const streams = await Promise.all(Array.from({ length: 8 }, () => openStream(url)));
    const refused = await fetch(url);
    expect(refused.status).toBe(503);
    expect(await refused.json()).toMatchObject({ reason: "OVERLOADED" });
    expect((await fetch(`${url}?pageSize=1`)).status).toBe(200);
    for (const { req } of streams) req.destroy();
    await expect.poll(() => gate.inFlight, promptly).toBe(0);
  });
});

describe("an old connection of HTTP/1.1", () => {
  it("closes with its next reply, and not under a request that is on its way", async () => {
    const { url } = await serve(() => ({ investors: [] }), 1_000);
    const socket = connect(Number(new URL(url).port), "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    let text = "";
    socket.setEncoding("utf8").on("data", (part) => {
      text += part;
    });
    const get = "GET /v1/investors?pageSize=1 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    socket.write(get);
    await expect.poll(() => text).toContain("[]");
    expect(text).toContain("keep-alive");
    await delay(1_500);
    expect(socket.readyState).toBe("open");
    text = "";
    socket.write(get);
    await once(socket, "end");
    expect(text).toMatch(/connection: close[\s\S]*\[\]$/i);
  });
});

describe("an old connection", () => {
  it.each([
    ["HTTP/1.1", ["http/1.1", "h2"]],
    ["HTTP/2", ["h2"]],
  ] as const)("of %s carries a whole list to its end, and closes then", async (name, versions) => {
    const pages = 30;
    let read = 0;
    const list = () => {
      read += 1;
      return { investors: aPage(), nextPageToken: read < pages ? "more" : "" };
    };
    const { url } = await serve(list, 100, versions, 500);
    const tcp = connect(Number(new URL(url).port), "127.0.0.1");
    onTestFinished(() => void tcp.destroy());
    const closed = new Promise((resolve) => tcp.once("close", resolve));
    const createConnection = () => tcp;
    const body =
      name === "HTTP/2"
        ? connectHttp2(url, { createConnection }).request({ ":path": "/v1/investors" })
        : (
            await once(
              request(url, { createConnection, headers: { connection: "keep-alive" } }).end(),
              "response",
            )
          )[0];
    let text = "";
    let waits = 0;
    for await (const part of body.setEncoding("utf8")) {
      text += part;
      if (text.length < waits * 500_000) continue;
      waits += 1;
      await delay(100);
    }
    expect(JSON.parse(text)).toHaveLength(pages * 1_000);
    await closed;
  });
});
