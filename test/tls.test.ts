import { execFileSync } from "node:child_process";
import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { type ClientHttp2Session, connect as connectHttp2 } from "node:http2";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { v4 } from "uuid";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { deriveId } from "../src/investor/ids.ts";
import {
  createAuthority,
  getOverTls,
  writeServerFiles,
  writeServerFlags,
} from "./support/certificates.ts";
import { clientsOf } from "./support/clients.ts";
import { failureOf } from "./support/errors.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { messages, openCall, paths, rawCall, replyOf, untilArrived } from "./support/raw-grpc.ts";
import { aCreate, institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { http1, statusesIn } from "./support/tcp.ts";
import { needs } from "./support/tools.ts";

/** Starts a service with TLS, and gives the folder of its files and the authority that has signed for it. */
async function start(more: Record<string, string> = {}) {
  const files = temporaryFolder();
  const authority = await createAuthority();
  const flags = await writeServerFlags(files, authority);
  return { ...(await startInProcess({ ...flags, ...more })), files, authority, ca: authority.ca };
}

/** Starts a service that knows an authority of clients, which has signed for one of them. */
async function startWithClients() {
  const clients = await createAuthority("Clients");
  const file = temporaryFile(clients.ca);
  const server = await start({ "--tls-client-ca": file });
  return { ...server, clients, file, own: await clients.sign("backend.example") };
}

function openSession(port: number, options: ConnectionOptions): ClientHttp2Session {
  const session = connectHttp2(`https://localhost:${port}`, options).on("error", () => {});
  onTestFinished(() => session.destroy());
  return session;
}

/** The status of a GET by a session of HTTP/2. */
async function get(session: ClientHttp2Session, path = "/v1/investors?pageSize=1") {
  const stream = session.request({ ":path": path }).resume();
  const [headers] = await once(stream, "response");
  await once(stream, "close");
  return headers[":status"];
}

const dayMs = 86_400_000;

/** Longer than between two looks at the ages of connections, in milliseconds. */
const lookMs = 1_200;

/** Sets the clock of this process, and so of the service in it, until the end of the test. */
function setClock(now: number): void {
  if (!vi.isFakeTimers()) vi.useFakeTimers({ toFake: ["Date"] });
  onTestFinished(() => void vi.useRealTimers());
  vi.setSystemTime(now);
}

/** Makes a certificate with an extension, by OpenSSL, which it signs itself. */
function signSelf(extension: string, subject = "/") {
  const folder = temporaryFolder();
  const [key, cert] = [join(folder, "key"), join(folder, "cert")];
  const make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj";
  const args = [...make.split(" "), subject, "-keyout", key, "-out", cert, "-addext", extension];
  execFileSync("openssl", args, { stdio: "pipe" });
  return { cert: readFileSync(cert, "utf8"), key: readFileSync(key, "utf8") };
}

/** Connects by TLS and tells how; a session to resume comes with the first data. */
async function handshake(port: number, options: ConnectionOptions) {
  const socket = connectTls({ port, host: "localhost", ALPNProtocols: ["h2"], ...options });
  onTestFinished(() => void socket.destroy());
  let session: Buffer | undefined;
  socket
    .on("error", () => {})
    .on("session", (each) => {
      session = each;
    });
  await once(socket, "secureConnect");
  if (socket.getProtocol() === "TLSv1.3") await once(socket, "data");
  const { name: cipher } = socket.getCipher();
  const subject = socket.getPeerX509Certificate()?.subject;
  const isReused = socket.isSessionReused();
  socket.destroy();
  return { session, isReused, cipher, subject };
}

describe("TLS", () => {
  it("carries every protocol, on HTTP/1.1 and HTTP/2, and nothing that is not encrypted", async () => {
    const { ca, ...server } = await start();
    for (const httpVersion of ["1.1", "2"] as const) {
      for (const client of Object.values(clientsOf(server, { tls: { ca }, httpVersion }))) {
        const created = await client.createInvestor(aCreate());
        expect(await client.getInvestor({ id: created.id })).toEqual(created);
        const failure = await failureOf(client.createInvestor({}));
        expect(failure).toMatchObject({ reason: "INVALID_FIELDS" });
      }
    }
    expect(JSON.parse(await getOverTls(server, "/v1/investors", { ca }))).toHaveLength(8);
    await expect(fetch(`http://localhost:${server.port}/healthz`)).rejects.toThrow();
    await expect(clientsOf(server).gRPC.listInvestors({})).rejects.toThrow();
    expect(server.errors).toEqual([]);
  });

  it("carries a request of several records while replies wait to be read, on HTTP/1.1", async () => {
    const { ca, port } = await start();
    const socket = connectTls({ port, host: "localhost", ca }).setEncoding("latin1");
    onTestFinished(() => void socket.destroy());
    let replies = "";
    socket.on("data", (chunk) => {
      replies += chunk;
    });
    const record = JSON.stringify(institution).padEnd(60_000);
    const create = http1("POST", "/v1/investors", { "content-type": "application/json" }, record);
    socket.write(http1("GET", "/openapi.json", {}).repeat(12) + create);
    await expect.poll(() => statusesIn(replies)).toEqual(Array(13).fill(200));
  });

  it("is renewed without dropping a call, as tokens are, whatever their files hold in between", async () => {
    const tokens = temporaryFile("backend token-of-the-backend\n");
    const { files, authority, ca, ...server } = await start({ "--auth-tokens-file": tokens });
    const authorization = "Bearer token-of-the-backend";
    let isDone = false;
    const calls = Object.values(clientsOf(server, { tls: { ca }, authorization })).map(
      async (client) => {
        while (!isDone) await client.createInvestor(aCreate());
      },
    );
    for (const name of ["second.example", "third.example"]) {
      writeFileSync(tokens, "");
      // Before its key.
      writeFileSync(join(files, "server.crt"), (await authority.sign(name)).cert);
      expect((await server.reload(true)).errors).toHaveLength(2);
      expect(await server.reload(true)).toEqual({ errors: [], reloaded: [] });
      await writeServerFiles(files, authority, name);
      writeFileSync(tokens, `${name} token-of-another-one\nbackend token-of-the-backend\n`);
      expect((await server.reload(true)).reloaded).toEqual(["tokens", "certificates"]);
      expect((await handshake(server.port, { ca })).subject).toContain(name);
    }
    isDone = true;
    await Promise.all(calls);
  });

  it("has forward secrecy and authenticated encryption, also once it was renewed", async () => {
    const { ca, port, reload, files, authority } = await start();
    const refused = [
      { ciphers: "AES128-GCM-SHA256", maxVersion: "TLSv1.2" },
      { ciphers: "ECDHE-RSA-AES128-SHA", maxVersion: "TLSv1.2" },
      { ciphers: "ECDHE-RSA-AES256-SHA384", maxVersion: "TLSv1.2" },
      { ciphers: "DEFAULT@SECLEVEL=0", minVersion: "TLSv1", maxVersion: "TLSv1.1" },
      // Slow enough for a flood.
      { ecdhCurve: "P-521" },
    ] as const;
    const accepted = [
      { ciphers: "ECDHE-RSA-CHACHA20-POLY1305", maxVersion: "TLSv1.2" },
      { maxVersion: "TLSv1.2" },
      { minVersion: "TLSv1.3" },
    ] as const;
    for (let renewals = 0; renewals < 2; renewals += 1) {
      for (const options of refused) {
        const refusal = expect(handshake(port, { ca, ...options }), JSON.stringify(options));
        await refusal.rejects.toThrow();
      }
      for (const options of accepted) {
        expect((await handshake(port, { ca, ...options })).cipher).toMatch(/^(ECDHE|TLS)/);
      }
      await writeServerFiles(files, authority);
      expect((await reload()).reloaded).toEqual(["certificates"]);
    }
  });
});

describe("a client certificate", () => {
  it("tells who calls; without a trusted one, only health checks reply", async () => {
    const { own, ca, clients, ...server } = await startWithClients();
    const requestId = v4();
    const request = aCreate({ requestId });
    for (const client of Object.values(clientsOf(server, { tls: { ca, ...own } }))) {
      const { id } = await client.createInvestor(request);
      // Under another, a replay would make a second record.
      expect(id).toBe(deriveId("certificate CN=backend.example", requestId));
    }
    expect(await get(openSession(server.port, { ca, ...own }), "/metrics")).toBe(200);
    const other = await (await createAuthority("Others")).sign("backend.example");
    for (const [tls, reason] of [
      [{ ca, ...other }, "CREDENTIALS_INVALID"],
      [{ ca }, "CREDENTIALS_MISSING"],
    ] as const) {
      for (const [protocol, client] of Object.entries(clientsOf(server, { tls }))) {
        const failure = await failureOf(client.listInvestors({}));
        expect(failure, protocol).toMatchObject({ code: "Unauthenticated", reason });
      }
      const session = openSession(server.port, tls);
      expect((await rawCall(session, paths.check, messages.empty)).status).toBe(0);
      expect(await get(session, "/readyz")).toBe(200);
      expect(await get(session)).toBe(401);
      expect(await get(session, "/metrics")).toBe(401);
    }
  });

  it("is refused before it is valid, and taken then, on a connection that is open", async () => {
    const { ca, own, port } = await startWithClients();
    const session = openSession(port, { ca, ...own });
    setClock(Date.now() - 2 * dayMs);
    expect(await get(session)).toBe(401);
    vi.useRealTimers();
    expect(await get(session)).toBe(200);
  });

  it("retires its connections when half of its last minute is left, and is refused once expired", async () => {
    const { ca, own, port } = await startWithClients();
    const endsAt = new X509Certificate(own.cert).validToDate.getTime();
    const stranger = openSession(port, { ca });
    const early = openSession(port, { ca, ...own });
    expect(await get(early)).toBe(200);
    setClock(endsAt - 4_000);
    const start = performance.now();
    const late = openSession(port, { ca, ...own });
    const closed = once(late, "close");
    expect(await get(late)).toBe(200);
    await closed;
    expect(performance.now() - start).toBeGreaterThan(1_900);
    expect(performance.now() - start).toBeLessThan(4_000);
    expect(await get(early)).toBe(200);
    setClock(endsAt + 1_000);
    expect(await get(early)).toBe(401);
    expect(stranger.closed).toBe(false);
  });

  it.each(["that has expired", "of an unknown CA"])(
    "%s is refused call by call, on a connection that stays for a minute",
    async (which) => {
      const { ca, own, port } = await startWithClients();
      const unknown = await (await createAuthority("Others")).sign("backend.example");
      const hasExpired = which === "that has expired";
      if (hasExpired) setClock(new X509Certificate(own.cert).validToDate.getTime() + 1_000);
      const stranger = openSession(port, { ca });
      const session = openSession(port, { ca, ...(hasExpired ? own : unknown) });
      const closed = once(session, "close");
      expect(await get(session)).toBe(401);
      await delay(lookMs);
      expect(await get(session)).toBe(401);
      const now = performance.now.bind(performance);
      const clock = vi.spyOn(performance, "now").mockImplementation(() => now() + 60_000);
      onTestFinished(() => clock.mockRestore());
      await closed;
      expect(stranger.closed).toBe(false);
    },
  );

  it("of a CA that a reload takes out retires its connections at once, which end ten seconds later", async () => {
    const { ca, own, file, ...server } = await startWithClients();
    const next = await createAuthority("Next");
    const renewed = await next.sign("backend.example");
    const stranger = openSession(server.port, { ca });
    const session = openSession(server.port, { ca, ...own });
    const retired = once(session, "close");
    const held = openSession(server.port, { ca, ...own });
    const call = openCall(held, paths.create);
    await untilArrived(held);
    await writeServerFiles(server.files, server.authority);
    await server.reload();
    await delay(lookMs);
    expect(await get(session)).toBe(200);
    writeFileSync(file, next.ca);
    const start = performance.now();
    await server.reload();
    await retired;
    expect(held.destroyed).toBe(false);
    await replyOf(call);
    expect(performance.now() - start).toBeGreaterThan(9_900);
    const line = { reason: "certificate", msg: "connection closed" };
    expect(server.lines).toContainEqual(expect.objectContaining(line));
    const client = clientsOf(server, { tls: { ca, ...own } }).gRPC;
    expect((await failureOf(client.listInvestors({}))).reason).toBe("CREDENTIALS_INVALID");
    await clientsOf(server, { tls: { ca, ...renewed } }).gRPC.listInvestors({});
    expect(stranger.closed).toBe(false);
  });

  it.each(["TLSv1.2", "TLSv1.3"] as const)(
    "has to be shown on every connection: none is resumed by %s",
    async (maxVersion) => {
      const { ca, own, port } = await startWithClients();
      const options = { ca, ...own, maxVersion };
      const { session } = await handshake(port, options);
      const again = await handshake(port, session ? { ...options, session } : options);
      expect(again.isReused).toBe(false);
    },
  );

  it(
    "without a subject tells who calls by its alternative names, if they name somebody",
    needs("openssl"),
    async () => {
      const { ca, file, ...server } = await startWithClients();
      const other = signSelf("keyUsage=digitalSignature", "/CN=other");
      const held = Buffer.from(`\n${other.cert}`).toString("hex");
      const certificates = [
        {
          own: signSelf("subjectAltName=URI:spiffe://example/one"),
          holder: "URI:spiffe://example/one",
        },
        // It does not pass for another that it holds in an extension.
        { own: signSelf(`1.2.3.4=DER:${held}`, "/CN=own"), holder: "CN=own" },
        { own: signSelf("subjectAltName=otherName:1.2.3.4;OCT:x") },
        { own: signSelf("keyUsage=digitalSignature") },
        // No name, no list of names, a name without characters, and an address of five bytes.
        { own: signSelf("2.5.29.17=DER:30:00") },
        { own: signSelf("2.5.29.17=DER:01:02:03") },
        { own: signSelf("2.5.29.17=DER:30:02:82:00") },
        { own: signSelf("2.5.29.17=DER:30:07:87:05:01:02:03:04:05") },
      ];
      writeFileSync(file, certificates.map(({ own }) => own.cert).join(""));
      await server.reload();
      const requestId = v4();
      for (const [i, { own, holder }] of certificates.entries()) {
        const { gRPC } = clientsOf(server, { tls: { ca, ...own } });
        const creating = gRPC.createInvestor(aCreate({ requestId }));
        if (holder === undefined) {
          const failure = { code: "Unauthenticated", reason: "CREDENTIALS_INVALID" };
          expect(await failureOf(creating), `number ${i}`).toMatchObject(failure);
        } else {
          expect((await creating).id).toBe(deriveId(`certificate ${holder}`, requestId));
        }
      }
    },
  );
});
