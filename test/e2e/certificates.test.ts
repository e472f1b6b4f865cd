import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { type ClientHttp2Session, connect as connectHttp2 } from "node:http2";
import { join } from "node:path";
import { type ConnectionOptions, connect as connectTls, TLSSocket } from "node:tls";
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { pino } from "pino";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { startServer } from "../../src/server.ts";
import { deriveId } from "../../src/service/ids.ts";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { createClock } from "../support/clock.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFolder } from "../support/folder.ts";
import { aCreate } from "../support/records.ts";
import { type Service, startService } from "../support/service.ts";
import { readVariables } from "../support/settings.ts";
import { hasTool } from "../support/tools.ts";

/** The files of a server that knows an authority of clients, and what a client of it needs. */
async function prepare() {
  const folder = temporaryFolder();
  const [servers, clients] = await Promise.all([createAuthority(), createAuthority("Clients")]);
  writeFileSync(join(folder, "clients.crt"), clients.ca);
  const files = await writeServerFiles(folder, servers);
  const env = { ...files, TLS_CLIENT_CA: join(folder, "clients.crt") };
  return { folder, env, ca: servers.ca, own: await clients.sign("backend.example") };
}

/** The status of a GET of the list by a session of HTTP/2. */
async function list(session: ClientHttp2Session): Promise<number | undefined> {
  const stream = session.request({ ":path": "/v1/investors?pageSize=1" }).resume();
  const [headers] = await once(stream, "response");
  await once(stream, "close");
  return headers[":status"];
}

function openSession(httpPort: number, options: ConnectionOptions): ClientHttp2Session {
  const session = connectHttp2(`https://localhost:${httpPort}`, options);
  onTestFinished(() => session.destroy());
  return session;
}

/** Connects by TLS and tells what came of it; a session to resume comes with the first data. */
async function handshake(port: number, options: ConnectionOptions) {
  const socket = connectTls({ port, host: "localhost", ALPNProtocols: ["h2"], ...options });
  onTestFinished(() => void socket.destroy());
  socket.on("error", () => {});
  let session: Buffer | undefined;
  socket.on("session", (each) => {
    session = each;
  });
  await once(socket, "secureConnect");
  if (socket.getProtocol() === "TLSv1.3") await once(socket, "data");
  const isReused = socket.isSessionReused();
  const { name } = socket.getCipher();
  socket.destroy();
  return { session, isReused, cipher: name };
}

const bothPorts = ({ grpcPort, httpPort }: Service) => [grpcPort, httpPort];

describe.skipIf(!hasTool("cc", ["--version"]))("a client certificate that expires", () => {
  it("is refused from then on, also on connections that are open, on both ports", async () => {
    const { folder, env, ca, own } = await prepare();
    const clock = createClock();
    const service = await startService({ ...env, ...clock.env }, folder);
    const credentials = { ca, ...own };
    const baseUrl = `https://localhost:${service.grpcPort}`;
    const transport = createGrpcTransport({ baseUrl, nodeOptions: credentials });
    const client = createClient(InvestorService, transport);
    const session = openSession(service.httpPort, credentials);
    await client.createInvestor(aCreate());
    expect(await list(session)).toBe(200);
    for (const shift of [2 * 86_400, -86_400]) {
      clock.shift(shift);
      const failure = await failureOf(client.createInvestor(aCreate()));
      expect(failure).toMatchObject({ code: "Unauthenticated", reason: "CREDENTIALS_INVALID" });
      expect(await list(session)).toBe(401);
      expect(await list(openSession(service.httpPort, credentials))).toBe(401);
      clock.shift(0);
      await client.createInvestor(aCreate());
      expect(await list(session)).toBe(200);
    }
  });
});

describe("connections by TLS", () => {
  it.each(["TLSv1.2", "TLSv1.3"] as const)(
    "with client certificates are not resumed by %s",
    async (maxVersion) => {
      const { folder, env, ca, own } = await prepare();
      const service = await startService(env, folder);
      for (const port of bothPorts(service)) {
        const options = { ca, ...own, maxVersion };
        const { session } = await handshake(port, options);
        const again = await handshake(port, session ? { ...options, session } : options);
        expect(again.isReused).toBe(false);
      }
    },
  );

  it("have forward secrecy and authenticated encryption, also after SIGHUP", async () => {
    const { folder, env, ca } = await prepare();
    const service = await startService(env, folder);
    const refused = [
      { ciphers: "AES128-SHA", maxVersion: "TLSv1.2" },
      { ciphers: "AES128-GCM-SHA256", maxVersion: "TLSv1.2" },
      { ciphers: "AES256-GCM-SHA384", maxVersion: "TLSv1.2" },
      { ciphers: "ECDHE-RSA-AES128-SHA", maxVersion: "TLSv1.2" },
      { ciphers: "ECDHE-RSA-AES256-SHA384", maxVersion: "TLSv1.2" },
      { ciphers: "DEFAULT@SECLEVEL=0", minVersion: "TLSv1", maxVersion: "TLSv1.1" },
    ] as const;
    const accepted = [
      { ciphers: "ECDHE-RSA-AES128-GCM-SHA256", maxVersion: "TLSv1.2" },
      { ciphers: "ECDHE-RSA-CHACHA20-POLY1305", maxVersion: "TLSv1.2" },
      { maxVersion: "TLSv1.2" },
      { minVersion: "TLSv1.3" },
    ] as const;
    for (const port of bothPorts(service)) {
      for (const options of refused) {
        await expect(
          handshake(port, { ca, ...options }),
          JSON.stringify(options),
        ).rejects.toThrow();
      }
      for (const options of accepted) {
        expect((await handshake(port, { ca, ...options })).cipher).toMatch(/^(ECDHE|TLS)/);
      }
    }
    service.child.kill("SIGHUP");
    await expect.poll(() => service.output()).toContain('"reloaded certificates"');
    for (const port of bothPorts(service)) {
      await expect(handshake(port, { ca, ...refused[0] })).rejects.toThrow();
      expect((await handshake(port, { ca, ...accepted[0] })).cipher).toMatch(/^ECDHE/);
    }
  });

  it("have their certificate looked at once, however many calls they carry", async () => {
    const { folder, env, ca, own } = await prepare();
    const settings = { ...env, DATABASE_URL: `sqlite:${folder}/investors.db` };
    const ports = { GRPC_PORT: "0", HTTP_PORT: "0" };
    const config = readVariables({ ...settings, ...ports });
    const server = await startServer(config, pino({ level: "silent" }), () => {});
    onTestFinished(async () => void (await server.stop()));
    const looks = vi.spyOn(TLSSocket.prototype, "getPeerCertificate");
    onTestFinished(() => looks.mockRestore());
    const session = openSession(server.httpPort, { ca, ...own });
    for (let i = 0; i < 10; i += 1) expect(await list(session)).toBe(200);
    const ofServer = looks.mock.contexts.filter(
      (each) => (each as TLSSocket).localPort === server.httpPort,
    );
    expect(ofServer).toHaveLength(1);
  });
});

describe("a chain of client certificates", () => {
  it("closes the connection if it is longer than anybody needs", async () => {
    const { folder, env, ca, own } = await prepare();
    const other = await createAuthority();
    const chain = { ca, key: own.key, cert: own.cert + other.ca.repeat(60) };
    const service = await startService(env, folder);
    for (const port of bothPorts(service)) {
      const socket = connectTls({ port, host: "localhost", ALPNProtocols: ["h2"], ...chain });
      onTestFinished(() => void socket.destroy());
      socket.on("error", () => {}).resume();
      await once(socket, "close");
    }
  });
});

describe.skipIf(!hasTool("openssl", ["version"]))("a client certificate without a subject", () => {
  /** Makes a certificate that has signed itself. */
  function sign(...args: string[]): { cert: string; key: string } {
    const folder = temporaryFolder();
    const [key, cert] = [join(folder, "key"), join(folder, "cert")];
    const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    const out = ["-keyout", key, "-out", cert, "-days", "1"];
    execFileSync("openssl", ["req", "-x509", ...newKey, ...out, ...args], { stdio: "pipe" });
    return { cert: readFileSync(cert, "utf8"), key: readFileSync(key, "utf8") };
  }
  const alternative = (name: string) => ["-subj", "/", "-addext", `subjectAltName=${name}`];

  it("tells who calls by its alternative names, and nobody without any that it can show", async () => {
    const { folder, env, ca } = await prepare();
    const one = sign(...alternative("URI:spiffe://example/one"));
    const two = sign(...alternative("URI:spiffe://example/two"));
    const unknown = sign(...alternative("otherName:1.2.3.4;OCT:x"));
    const nobody = sign("-subj", "/");
    const all = [one, two, unknown, nobody];
    writeFileSync(env.TLS_CLIENT_CA, all.map(({ cert }) => cert).join(""));
    const service = await startService({ ...env, LOG_LEVEL: "debug" }, folder);
    const baseUrl = `https://localhost:${service.grpcPort}`;
    const clientOf = (own: typeof one) =>
      createClient(InvestorService, createGrpcTransport({ baseUrl, nodeOptions: { ca, ...own } }));
    const requestId = "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d";
    const ids: string[] = [];
    const request = aCreate({ requestId });
    for (const own of [one, two, one]) {
      ids.push((await clientOf(own).createInvestor(request)).id);
    }
    expect(ids[0]).toBe(deriveId("certificate URI:spiffe://example/one", requestId));
    expect(ids[1]).toBe(deriveId("certificate URI:spiffe://example/two", requestId));
    expect(ids[2]).toBe(ids[0]);
    expect(service.output()).toContain('"principal":"certificate URI:spiffe://example/one"');
    for (const own of [unknown, nobody]) {
      const failure = await failureOf(clientOf(own).createInvestor(request));
      expect(failure).toMatchObject({ code: "Unauthenticated", reason: "CREDENTIALS_INVALID" });
    }
  });
});
