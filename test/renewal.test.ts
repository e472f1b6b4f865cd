import { once } from "node:events";
import { mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { connect } from "node:tls";
import { expect, it, onTestFinished } from "vitest";
import { createAuthority } from "./support/certificates.ts";
import { temporaryFolder } from "./support/folder.ts";
import { hurry, startService } from "./support/service.ts";

/** Starts a service whose files are links through a link to a folder, as Kubernetes makes them. */
async function startWithSecret() {
  const folder = temporaryFolder();
  const secret = join(folder, "secret");
  const authority = await createAuthority();
  let version = 0;

  /** Has the links lead to new files at once. */
  async function renew(changes: Record<string, string> = {}, days = 1) {
    version += 1;
    const { cert, key } = await authority.sign(`version-${version}.example`, days);
    const tokens = `backend token-of-version-${version}\n`;
    const files = { "tls.crt": cert, "tls.key": key, "ca.crt": authority.ca, tokens, ...changes };
    mkdirSync(join(secret, `..${version}`), { recursive: true });
    for (const [name, text] of Object.entries(files)) {
      writeFileSync(join(secret, `..${version}`, name), text);
    }
    symlinkSync(`..${version}`, join(secret, "..next"));
    renameSync(join(secret, "..next"), join(secret, "..data"));
    return files;
  }

  const files = await renew();
  for (const name of Object.keys(files)) symlinkSync(`..data/${name}`, join(secret, name));
  const env = {
    TLS_CERT: "secret/tls.crt",
    TLS_KEY: "secret/tls.key",
    TLS_CLIENT_CA: "secret/ca.crt",
    AUTH_TOKENS_FILE: "secret/tokens",
    NODE_OPTIONS: hurry(100, ["setInterval"]),
  };
  const { child, output, port } = await startService(env, folder);
  const { ca } = authority;

  return {
    files,
    path: (name: string) => join(secret, name),
    renew,
    /** Which version of the certificate a new connection is shown. */
    async shown() {
      const socket = connect({ port, host: "127.0.0.1", ca, ALPNProtocols: ["h2"] });
      onTestFinished(() => void socket.destroy());
      await once(socket, "secureConnect");
      const names = socket.getPeerCertificate().subjectaltname ?? "";
      return Number(/version-(\d+)/.exec(names)?.[1]);
    },
    child,
    /** What it has reloaded so far. */
    reloads: () => Array.from(output().matchAll(/"reloaded ([^"]*)"/g), ([, what]) => what),
    /** How often the log has a text. */
    logged: (text: string) => output().split(text).length - 1,
  };
}

it("certificates and tokens are read again when their links lead elsewhere, without a signal", async () => {
  const { files, renew, shown, reloads } = await startWithSecret();
  expect(await shown()).toBe(1);
  // The same content is not used again.
  await renew({ tokens: files.tokens });
  await expect.poll(shown).toBe(2);
  expect(reloads()).toEqual(["certificates"]);
  await renew();
  await expect.poll(shown).toBe(3);
  // A look amid the change finds new certificates alone; the one that finds the tokens finds all.
  await expect.poll(() => reloads().slice(1).join()).toMatch(/tokens/);
});

it("a certificate that has expired is used, with a warning", async () => {
  const { renew, shown, logged } = await startWithSecret();
  await renew({}, -1);
  await expect.poll(() => logged("secret/tls.crt expired at 20")).toBe(1);
  await expect(shown()).rejects.toThrow("certificate has expired");
});

it("a certificate that comes before its key is not used, which is said once, until that comes", async () => {
  const { files, path, renew, shown, logged } = await startWithSecret();
  const refusal = "TLS_KEY secret/tls.key is not the key of TLS_CERT secret/tls.crt (ERR_";
  const { "tls.crt": cert } = await renew({ "tls.key": files["tls.key"] });
  await expect.poll(() => logged(refusal)).toBe(1);
  await expect.poll(() => logged('"reloaded tokens"')).toBe(1);
  writeFileSync(path("tokens"), "other token-of-another\n");
  await expect.poll(() => logged('"reloaded tokens"')).toBe(2);
  expect(logged(refusal)).toBe(1);
  expect(await shown()).toBe(1);
  await renew({ "tls.crt": cert.slice(0, -200) });
  await expect.poll(() => logged("tls.crt is not a usable certificate in PEM (ERR_")).toBe(1);
  await renew();
  await expect.poll(shown).toBe(4);
  rmSync(path("tls.key"));
  await expect.poll(() => logged("secret/tls.key cannot be read (ENOENT); the previous")).toBe(1);
  expect(await shown()).toBe(4);
});

it.each([
  ["a folder", (path: string) => mkdirSync(path), "EISDIR"],
  ["empty", (path: string) => writeFileSync(path, ""), "holds no token"],
  ["too large", (path: string) => writeFileSync(path, "#".repeat(2 ** 25)), "holds more than"],
])(
  "a tokens file that has become %s is refused once, and at each SIGHUP",
  async (_, make, fault) => {
    const { child, files, path, logged } = await startWithSecret();
    rmSync(path("tokens"));
    make(path("tokens"));
    await expect.poll(() => logged(fault)).toBe(1);
    writeFileSync(path("ca.crt"), files["ca.crt"].repeat(2));
    await expect.poll(() => logged('"reloaded certificates"')).toBe(1);
    expect(logged(fault)).toBe(1);
    child.kill("SIGHUP");
    await expect.poll(() => logged(fault)).toBe(2);
  },
);
