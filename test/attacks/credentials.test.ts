/** Credentials that look good and are not, and those who hold good ones while others fail. */
import { createHmac, createPublicKey } from "node:crypto";
import { once } from "node:events";
import { readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type ConnectionOptions, connect as connectTls, type TLSSocket } from "node:tls";
import { exportJWK, generateKeyPair, SignJWT } from "jose";
import { expect } from "vitest";
import { createClientAuthority } from "../support/client-authority.ts";
import { temporaryFolder } from "../support/folder.ts";
import { frame } from "../support/raw-grpc.ts";
import { run } from "../support/service.ts";
import { hasTool } from "../support/tools.ts";
import { type Attack, describeAttacks } from "./describe-attacks.ts";
import { grpcHeaders, rpc } from "./requests.ts";
import { type Target, within } from "./target.ts";

const list = grpcHeaders(`${rpc}/ListInvestors`);
const emptyMessage = frame(Buffer.alloc(0));
const unauthenticated = "16";

const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
const now = () => Math.floor(Date.now() / 1_000);

/** Tokens of every kind that must not pass, by name. */
async function forgedTokens(target: Target): Promise<[string, string][]> {
  const { issuer } = target;
  if (issuer === undefined) throw new Error("there is no issuer");
  const scope = "investors:read investors:write";
  const good = await issuer.sign({ scope });
  const [head = "", body = "", signature = ""] = good.split(".");
  const header = JSON.parse(Buffer.from(head, "base64url").toString());
  const claims = JSON.parse(Buffer.from(body, "base64url").toString());
  const { keys } = (await (await fetch(`${issuer.url}/keys`)).json()) as {
    keys: Record<string, string>[];
  };
  const [jwk = {}] = keys;
  const pem = createPublicKey({ key: jwk, format: "jwk" }).export({ type: "spki", format: "pem" });
  const own = await generateKeyPair("ES256", { extractable: true });
  const ownJwk = await exportJWK(own.publicKey);
  const signOwn = (fields: object, changes: object = {}) =>
    new SignJWT({ ...claims, ...changes })
      .setProtectedHeader({ alg: "ES256", ...fields })
      .sign(own.privateKey);
  const hmac = (fields: object, key: string) => {
    const text = `${encode({ ...header, ...fields })}.${body}`;
    return `${text}.${createHmac("sha256", key).update(text).digest("base64url")}`;
  };
  const unsigned = (fields: object) => `${encode({ ...header, ...fields })}.${body}.`;
  const kid = header.kid;
  return [
    ...["none", "None", "NONE", "nOnE", ""].flatMap((alg): [string, string][] => [
      [`alg ${alg}`, unsigned({ alg })],
      [`alg ${alg}, signed`, `${unsigned({ alg })}${signature}`],
    ]),
    ["no alg", `${encode({ kid })}.${body}.${signature}`],
    ["HMAC by the public key", hmac({ alg: "HS256" }, String(pem))],
    ["HMAC by the JWK", hmac({ alg: "HS256" }, JSON.stringify(jwk))],
    ["HMAC by nothing", hmac({ alg: "HS256" }, "")],
    ["a signature of zeros", `${head}.${body}.${Buffer.alloc(64).toString("base64url")}`],
    ["half a signature", `${head}.${body}.${signature.slice(0, 43)}`],
    ["no signature", `${head}.${body}.`],
    ["two parts", `${head}.${body}`],
    ["four parts", `${good}.${signature}`],
    ["five parts", `${good}..`],
    ["another body", `${head}.${encode({ ...claims, sub: "admin" })}.${signature}`],
    ["another header", `${encode({ ...header, x: 1 })}.${body}.${signature}`],
    ["a key of its own", await signOwn({ kid })],
    ["a key of its own, no kid", await signOwn({})],
    ["a key that it brings along", await signOwn({ kid, jwk: ownJwk })],
    ["a key that it tells where to find", await signOwn({ kid, jku: `${issuer.url}/keys` })],
    ["a certificate that it tells where to find", await signOwn({ kid, x5u: issuer.url })],
    ["a kid that is a path", await signOwn({ kid: "../../../../dev/null" })],
    ["a kid that is a query", await signOwn({ kid: "1' OR '1'='1" })],
    ["a kid that is no text", `${encode({ ...header, kid: { $ne: "" } })}.${body}.${signature}`],
    [
      "an extension that nobody knows",
      `${encode({ ...header, crit: ["x"], x: 1 })}.${body}.${signature}`,
    ],
    [
      "a body that is not encoded",
      `${encode({ ...header, b64: false, crit: ["b64"] })}.${body}.${signature}`,
    ],
    ["another audience", await issuer.sign({ scope, aud: "others" })],
    ["other audiences", await issuer.sign({ scope, aud: ["investors2", "others"] })],
    ["no audience", await issuer.sign({ scope, aud: undefined })],
    ["another issuer", await issuer.sign({ scope, iss: "https://evil.example" })],
    ["an issuer with a slash", await issuer.sign({ scope, iss: `${issuer.url}/` })],
    ["no issuer", await issuer.sign({ scope, iss: undefined })],
    ["a time that is over", await issuer.sign({ scope, exp: now() - 5 })],
    ["a time to come", await issuer.sign({ scope, nbf: now() + 600 })],
    ["no end", await issuer.sign({ scope, exp: undefined })],
    ["no subject", await issuer.sign({ scope, sub: undefined })],
    ["an empty subject", await issuer.sign({ scope, sub: "" })],
  ];
}

/** Tokens that are signed, with claims of types that they must not have. */
async function oddTokens({ issuer }: Target): Promise<[string, string][]> {
  if (issuer === undefined) throw new Error("there is no issuer");
  const odd = { $ne: "" } as unknown as string;
  const scope = "investors:read";
  return [
    ["a subject that is an object", await issuer.sign({ scope, sub: odd })],
    ["a subject that is a number", await issuer.sign({ scope, sub: 7 as unknown as string })],
    ["a subject that is a list", await issuer.sign({ scope, sub: ["x"] as unknown as string })],
    ["an end that is text", await issuer.sign({ scope, exp: "9999999999" as unknown as number })],
  ];
}

async function expectRefused(target: Target, tokens: [string, string][]): Promise<number> {
  const session = await target.session("grpc");
  for (const [name, token] of tokens) {
    const authorization = `Bearer ${token}`;
    const { grpcStatus } = await target.ask(session, { ...list, authorization }, emptyMessage);
    expect(grpcStatus, name).toBe(unauthenticated);
    const { status } = await target.request("/v1/investors", { headers: { authorization } });
    expect(status, name).toBe(401);
  }
  return 2 * tokens.length;
}

/** Whether a handshake succeeds. */
async function canHandshake(target: Target, port: "grpc" | "http", options: ConnectionOptions) {
  const { grpcPort, httpPort } = target.service;
  const socket = connectTls({
    port: port === "grpc" ? grpcPort : httpPort,
    host: "127.0.0.1",
    servername: "localhost",
    ca: target.ca,
    ALPNProtocols: ["h2"],
    ...options,
  });
  socket.on("error", () => {});
  const isDone = once(socket, "secureConnect").then(
    () => true,
    () => false,
  );
  const result = await within(
    Promise.race([
      isDone,
      once(socket, "close").then(
        () => false,
        () => false,
      ),
    ]),
    5_000,
    false,
  );
  socket.destroy();
  return result;
}

/** What a client of TLS may offer, and the service must not take. */
const weak: [string, ConnectionOptions][] = [
  ...["AES128-SHA", "AES256-SHA", "AES128-SHA256", "AES128-GCM-SHA256", "AES256-GCM-SHA384"].map(
    (ciphers): [string, ConnectionOptions] => [ciphers, { ciphers, maxVersion: "TLSv1.2" }],
  ),
  ["NULL-SHA256", { ciphers: "NULL-SHA256:@SECLEVEL=0", maxVersion: "TLSv1.2" }],
  ["anonymous", { ciphers: "AECDH-AES256-SHA:@SECLEVEL=0", maxVersion: "TLSv1.2" }],
  ...(["TLSv1", "TLSv1.1"] as const).map((version): [string, ConnectionOptions] => [
    version,
    { minVersion: version, maxVersion: version, ciphers: "DEFAULT:@SECLEVEL=0" },
  ]),
];

const tokenAttacks: Attack[] = [
  {
    name: "tokens that the issuer has not signed, or not for this",
    on: "TLS",
    run: async (target) => expectRefused(target, await forgedTokens(target)),
  },
  {
    name: "tokens with claims of wrong types",
    on: "TLS",
    run: async (target) => expectRefused(target, await oddTokens(target)),
  },
  {
    name: "an issuer that is gone, and tokens of keys that are known",
    on: "TLS",
    async run(target) {
      const { issuer } = target;
      if (issuer === undefined) throw new Error("there is no issuer");
      const authorization = `Bearer ${await issuer.sign({ scope: "investors:read" })}`;
      const session = await target.session("grpc");
      const body = frame(Buffer.from([8, 1]));
      expect((await target.askKnown(session, { ...list, authorization }, body)).grpcStatus).toBe(
        "0",
      );
      issuer.setAvailable(false);
      try {
        const others = Array.from({ length: 200 }, () =>
          target.ask(session, { ...list, authorization: "Bearer x.y.z" }, body),
        );
        await Promise.all(others);
        // Another token of the same key, which cannot be remembered.
        const another = `Bearer ${await issuer.sign({ scope: "investors:read", sub: "another" })}`;
        const { grpcStatus } = await target.askKnown(
          session,
          { ...list, authorization: another },
          body,
        );
        expect(grpcStatus, "the token of a known key").toBe("0");
      } finally {
        issuer.setAvailable(true);
      }
      return 202;
    },
  },
  {
    name: "handshakes without forward secrecy",
    on: "TLS",
    async run(target) {
      for (const port of ["grpc", "http"] as const) {
        for (const [name, options] of weak) {
          expect(await canHandshake(target, port, options), `${port} ${name}`).toBe(false);
        }
        expect(await canHandshake(target, port, { maxVersion: "TLSv1.2" }), port).toBe(true);
      }
      return 2 * weak.length;
    },
  },
];

/** Tokens files that mean something else than they say; each is refused with the line's number. */
const wrongTokensFiles: [string, string][] = [
  ["a scope instead of the token", "reports investors:read\n"],
  ["a comma in a token", "orders abcdefgh,ijklmnopqrst\n"],
  ["a comma in a lone token", "abcdefgh,ijklmnopqrst\n"],
  ["a token twice", "one 0123456789abcdef\ntwo 0123456789abcdef investors:read\n"],
  ["a token of one character", "orders x\n"],
  ["a token of fifteen characters", "0123456789abcde\n"],
];

const fileAttacks: Attack[] = [
  {
    name: "tokens files that are wrong",
    on: "TLS",
    async run() {
      for (const [name, text] of wrongTokensFiles) {
        const folder = temporaryFolder();
        writeFileSync(join(folder, "tokens"), text, { mode: 0o600 });
        const env = { AUTH_TOKENS_FILE: "tokens", GRPC_PORT: "0", HTTP_PORT: "0" };
        const { child, exited, output } = run([], env, folder);
        const code = await within(exited, 15_000, "it runs");
        child.kill("SIGKILL");
        expect(code, name).toBe(2);
        const line = name === "a token twice" ? 2 : 1;
        expect(output(), name).toContain(`line ${line}`);
        for (const word of text.match(/[\w,]{15,}/g) ?? [])
          expect(output(), name).not.toContain(word);
      }
      return wrongTokensFiles.length;
    },
  },
  {
    name: "other users of the machine",
    async run({ service }) {
      const data = join(service.folder, "data");
      const files = [data, ...readdirSync(data).map((name) => join(data, name))];
      for (const file of files) expect(statSync(file).mode & 0o077, file).toBe(0);
      return files.length;
    },
  },
];

const certificateAttacks: Attack[] = [
  {
    name: "a certificate that expires on an open connection",
    on: "TLS",
    async run(target) {
      const own = target.clients?.sign("/CN=backend", 10);
      const sessions = await Promise.all([
        target.session("grpc", own),
        target.session("http", own),
      ]);
      const page = frame(Buffer.from([8, 1]));
      const [grpc, http] = sessions;
      if (!grpc || !http) throw new Error("there is no session");
      const rest = { ":path": "/v1/investors/x" };
      expect((await target.askKnown(grpc, list, page)).grpcStatus).toBe("0");
      expect((await target.askKnown(http, rest)).status).toBe(404);
      await delay(11_000);
      expect((await target.ask(grpc, list, page)).grpcStatus, "gRPC").toBe(unauthenticated);
      expect((await target.ask(http, rest)).status, "REST").toBe(401);
      const late = await target.session("grpc", own);
      expect((await target.ask(late, list, page)).grpcStatus, "anew").toBe(unauthenticated);
      return 5;
    },
  },
  {
    name: "a certificate that expires before its connection is resumed",
    on: "TLS",
    async run(target) {
      for (const maxVersion of ["TLSv1.2", "TLSv1.3"] as const) {
        const own = { ...target.clients?.sign("/CN=backend", 8), maxVersion };
        const first = await target.session("grpc", own);
        expect((await target.askKnown(first, list, frame(Buffer.from([8, 1])))).grpcStatus).toBe(
          "0",
        );
        // By now the ticket is there, which TLS 1.3 sends after the handshake.
        const session = (first.socket as TLSSocket).getSession();
        await delay(9_000);
        const second = await target.session("grpc", { ...own, ...(session && { session }) });
        const { grpcStatus } = await target.ask(second, list, emptyMessage);
        expect(grpcStatus, maxVersion).toBe(unauthenticated);
      }
      return 2;
    },
  },
  {
    name: "certificates of others, of nobody, and without a subject",
    on: "TLS",
    async run(target) {
      const { clients } = target;
      if (clients === undefined) throw new Error("there are no certificates");
      const other = createClientAuthority().sign("/CN=backend", 600);
      const stranger = await target.session("grpc", other);
      expect((await target.ask(stranger, list, emptyMessage)).grpcStatus).toBe(unauthenticated);
      // Its name stands where certificates without a subject have it (RFC 5280, 4.2.1.6).
      const unnamed = await target.session("grpc", clients.sign("/", 600));
      const { grpcStatus } = await target.askKnown(unnamed, list, frame(Buffer.from([8, 1])));
      expect(grpcStatus, "without a subject").toBe("0");
      return 2;
    },
  },
];

const hasOpenssl = hasTool("openssl", ["version"]);
describeAttacks("credentials", [
  ...tokenAttacks,
  ...fileAttacks,
  ...(hasOpenssl ? certificateAttacks : []),
]);
