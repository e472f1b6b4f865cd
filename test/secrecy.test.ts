import { join } from "node:path";
import { ConnectError } from "@connectrpc/connect";
import { v7 } from "uuid";
import { expect, it } from "vitest";
import { clientsOf } from "./support/clients.ts";
import { runSql } from "./support/copying.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile } from "./support/folder.ts";
import { aNew, textOfAll } from "./support/records.ts";
import {
  ask,
  end,
  lockDatabase,
  preload,
  readMetrics,
  type Service,
  startService,
  storeWrong,
} from "./support/service.ts";

const secret = "S3CRET";
const token = `${secret}-token-without-a-name`;
const authorization = `Bearer ${token}`;

/** A valid request, all of whose text is recognisable. */
const request = { ...aNew(), ...textOfAll(`${secret} of a record`) };
const body = JSON.stringify({ ...request, type: "individual" });

/** Makes good and bad calls by every RPC protocol, and gives what those are told that fail. */
async function callByRpc(service: Service): Promise<string[]> {
  const clients = Object.values(clientsOf(service, { authorization }));
  const strangers = Object.values(clientsOf(service, { authorization: `Bearer ${secret}-wrong` }));
  const calls = clients.flatMap((client) => {
    const requestId = v7();
    return [
      client.createInvestor({ ...request, requestId }),
      client.createInvestor({ ...request, requestId, city: `${secret}-other` }),
      client.createInvestor({ ...request, country: secret, city: `${secret}\n` }),
      client.createInvestor({ ...request, requestId: secret }),
      client.createInvestor(request, { timeoutMs: 1 }),
      client.createInvestor(request, { headers: { traceparent: secret, "user-agent": secret } }),
      client.getInvestor({ id: secret }),
      client.listInvestors({ pageToken: secret }),
    ];
  });
  calls.push(...strangers.map((client) => client.createInvestor(request)));
  return (await Promise.allSettled(calls)).flatMap((each) => {
    if (each.status === "fulfilled") return [];
    const { rawMessage, metadata, details } = ConnectError.from(each.reason);
    const values = details.map((each) =>
      "value" in each ? Buffer.from(each.value as Uint8Array) : "",
    );
    return [[rawMessage, ...[...metadata].flat(), ...values].join(" ")];
  });
}

/** The same by JSON; what names an unknown member or parameter has its name in the reply. */
async function callByHttp(service: Service): Promise<string[]> {
  const calls: [path: string, body?: string, headers?: Record<string, string>][] = [
    ...["/v1/investors", "/investor.v1.InvestorService/CreateInvestor"].flatMap(
      (path): typeof calls => [
        [path, body],
        [path, body.slice(0, -1)],
        [path, `{"lastName": ${secret}}`],
        [path, `{"lastName": ${secret}}`, { "content-type": "application/json; charset=utf-8" }],
        [path, body, { authorization: `Basic ${secret}` }],
        [path, body, { "idempotency-key": secret }],
        [path, body, { "content-type": secret, "content-encoding": secret }],
        [path, secret.repeat(20_000)],
        [path, `{"${secret}": 1}`],
        [`${path}?${secret}=${secret}`, body],
      ],
    ),
    [`/v1/investors/${secret}`],
    [`/v1/investors?pageToken=${secret}`],
    [`/${secret}`],
  ];
  const refused = calls.map(async ([path, body = null, headers]) => {
    const reply = await ask(service, path, {
      method: body === null ? "GET" : "POST",
      headers: { "content-type": "application/json", authorization, ...headers },
      body,
    });
    const text = [...[...reply.headers].flat(), await reply.text()].join(" ");
    const namesUnknown = path.includes(`?${secret}`) || body?.startsWith(`{"${secret}"`);
    return reply.ok || namesUnknown ? [] : [text];
  });
  return (await Promise.all(refused)).flat();
}

const callEverything = async (service: Service) =>
  (await Promise.all([callByRpc(service), callByHttp(service)])).flat();

it("log, metrics and errors hold no field of a record but its id and no token, whatever fails", async () => {
  const service = await startService({
    AUTH_TOKENS_FILE: temporaryFile(`${token}\n`),
    ...{ LOG_LEVEL: "trace", LOG_CALLS: "true", REQUEST_TIMEOUT: "3s" },
  });
  const refused = await callEverything(service);
  const release = lockDatabase(service);
  refused.push(...(await callEverything(service)));
  release();
  const id = storeWrong(service);
  for (const client of Object.values(clientsOf(service, { authorization }))) {
    refused.push((await failureOf(client.getInvestor({ id }))).message);
  }
  const file = join(service.folder, "data/investors.db");
  runSql(file, "ALTER TABLE investors RENAME TO gone");
  refused.push(...(await callEverything(service)));
  const metrics = await readMetrics({ ...service, authorization });
  expect(metrics).toContain("\ninvestor_records_store_writable 0\n");
  runSql(file, "ALTER TABLE gone RENAME TO investors");
  await clientsOf(service, { authorization }).gRPC.createInvestor(request);
  await expect.poll(service.output).toContain("the database takes creates again");
  await end(service);
  const written = service.output() + metrics;
  const codes = ["INVALID_ARGUMENT", "UNAUTHENTICATED", "DEADLINE_EXCEEDED", "UNAVAILABLE"];
  for (const code of codes)
    expect(written.split(`"code":"${code}"`).length, code).toBeGreaterThan(4);
  expect(written).toContain('"code":"INTERNAL"');
  expect(refused.length).toBeGreaterThan(80);
  for (const text of [written, ...refused]) expect(text).not.toContain(secret);
});

it("the log holds no password of a database that cannot be reached", async () => {
  const url = `mongodb://user:${secret}@127.0.0.1:1/investors`;
  const service = await startService({ DATABASE_URL: url, LOG_LEVEL: "trace" });
  await callEverything(service);
  await expect.poll(service.output).toContain("not ready");
  expect(service.output()).not.toContain(secret);
});

it.each([
  [
    "Object.assign(RangeError('why'),{rawPacket:[1]})",
    '{"type":"RangeError","message":"why","stack":',
  ],
  ["null", '"null"'],
])("the log has the type, message and stack of an error: %s", async (thrown, logged) => {
  const script = `process.once("SIGUSR2", () => { throw ${thrown}; })`;
  const { child, exited, output } = await startService({ NODE_OPTIONS: preload(script) });
  child.kill("SIGUSR2");
  expect(await exited).toBe(1);
  expect(output()).toContain('"level":60');
  expect(output()).toContain(`"err":${logged}`);
  expect(output()).not.toContain('"rawPacket"');
});
