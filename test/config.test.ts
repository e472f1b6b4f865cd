import { Command, CommanderError } from "commander";
import { afterEach, describe, expect, it, vi } from "vitest";
import { ConfigError } from "../src/config-error.ts";
import { addSettings, nameAsGiven, readConfig } from "../src/settings/config.ts";
import { parseDatabaseUrl } from "../src/store/database-url.ts";
import { readSettings } from "./support/settings.ts";

const tls = { "--tls-cert": "a.crt", "--tls-key": "a.key" };
const oidc = { "--oidc-issuer": "https://i.example", "--oidc-audience": "a" };

afterEach(() => {
  vi.unstubAllEnvs();
});

/** A command whose settings were read from flags and the environment. */
function parse(flags: string[], environment: Record<string, string>): Command {
  for (const [name, value] of Object.entries(environment)) vi.stubEnv(name, value);
  const command = new Command("serve").exitOverride();
  addSettings(command);
  return command.parse(flags, { from: "user" });
}

describe("the settings", () => {
  it("have defaults, and are read as numbers, durations and lists", () => {
    const flags = {
      "--max-connection-age": "5m",
      "--drain-delay": "1500ms",
      "--cors-origin": "https://a.example, http://b:1",
    };
    expect(readSettings(flags)).toEqual({
      database: { kind: "sqlite", path: "data/investors.db", name: "sqlite:data/investors.db" },
      host: "127.0.0.1",
      port: [8_080],
      corsOrigin: ["https://a.example", "http://b:1"],
      allowInsecure: "false",
      maxInFlight: 1_024,
      maxConnections: 1_024,
      requestTimeout: 10_000,
      maxConnectionAge: 300_000,
      drainDelay: 1_500,
      drainTimeout: 20_000,
      logLevel: "info",
      logCalls: "false",
    });
  });

  it.each([
    ["--port", ["", "x", "-1", "65536", "1e3", "80.5", "80,", "80;81", "80,81,80"]],
    ["--host", ["", "127.0.0.1:8080", "localhost:", "[::1]:80", "http://localhost", "a b", "a\0"]],
    ["--cors-origin", ["example.com", "https://a.example/path", "https://*.example.com"]],
    ["--cors-origin", ["https://a,b", ",", "ftp://a.example"]],
    ["--max-in-flight", ["0", "-5", "many", "1000000000000"]],
    ["--max-connections", ["0", "all"]],
    ["--request-timeout", ["0s", "10", "s", "-1s", "10 s", "1d", "999999h"]],
    ["--max-connection-age", ["0ms", "soon"]],
    ["--drain-delay", ["5", "∞"]],
    ["--drain-timeout", ["", "1y"]],
    ["--oidc-audience", ["investors\n"]],
    ["--allow-insecure", ["", "maybe"]],
    ["--log-level", ["INFO", "verbose", "toString"]],
  ])("are refused while %s is wrong, which is named with what it accepts", (flag, values) => {
    for (const value of values) {
      const read = () => readSettings({ [flag]: value });
      expect(read, value).toThrow(CommanderError);
      const why = "is invalid. (It must be|Allowed choices are) .+\\.$";
      expect(read, value).toThrow(new RegExp(`^error: option '${flag} .* ${why}`, "s"));
    }
  });

  it.each([
    ["--database-url", ""],
    ["--database-url", "sqlite:"],
    ["--database-url", "sqlite3:///x.db"],
    ["--database-url", "SQLITE:x.db"],
    ["--database-url", "/x.db"],
    ["--database-url", "mongodb://"],
    ["--database-url", "mongodb://user:s3cret@host/db\n"],
    ["--database-url", "mysql://root:s3cret@host/db"],
    ["--oidc-issuer", "issuer.example"],
    ["--oidc-issuer", "http://issuer.example"],
    ["--oidc-issuer", "ftp://127.0.0.1"],
    ["--oidc-issuer", "https://u:s3cret@i.example"],
    ["--oidc-issuer", "https://i.example?s3cret"],
    ["--oidc-issuer", "https://i.example\n"],
  ])("are refused while %s is %j, which may be a secret and is not repeated", (flag, value) => {
    const read = () => readSettings({ ...oidc, [flag]: value });
    expect(read).toThrow(ConfigError);
    expect(read).toThrow(`${flag} must be `);
    expect(read).not.toThrow("s3cret");
  });

  it("have any number of ports", () => {
    expect(readSettings({ "--port": "8080, 50051,0,0" }).port).toEqual([8_080, 50_051, 0, 0]);
  });

  it.each(["--grpc-port", "--http-port"])("no longer have %s, and say what to set", (flag) => {
    const message = `${flag} no longer exists: "--port" (PORT) serves all protocols`;
    expect(() => readSettings({ [flag]: "8080" })).toThrow(message);
  });

  it.each([
    [{ "--tls-cert": "a.crt" }, "--tls-cert and --tls-key go together"],
    [{ "--oidc-audience": "a" }, "--oidc-issuer and --oidc-audience go together"],
    [{ "--log-calls": "true", "--log-level": "warn" }, "--log-calls needs --log-level info or"],
    [{ "--tls-client-ca": "ca.crt" }, "--tls-client-ca needs --tls-cert and --tls-key"],
  ])("are refused if one lacks what it needs: %j", (flags, message) => {
    expect(() => readSettings(flags)).toThrow(message);
  });

  const reachable = ["0.0.0.0", "::", "10.0.0.1", "investors.example", "127.0.0.1.example"];

  it.each(reachable)("are refused if calls to %s are open, unless they allow it", (host) => {
    const read = (flags: Record<string, string>) => readSettings({ "--host": host, ...flags });
    const tokens = { "--auth-tokens-file": "tokens" };
    for (const [flags, lacking] of [
      [{}, "encrypted (--tls-cert, --tls-key) and not authenticated"],
      [tls, "authenticated"],
      [tokens, "encrypted"],
      [oidc, "encrypted"],
    ] as const) {
      const message = `--host ${host} is not a loopback address, and calls are not ${lacking} (--`;
      expect(() => read(flags)).toThrow(message);
      expect(read({ ...flags, "--allow-insecure": "true" }).host).toBe(host);
    }
    expect(read({ ...tls, ...tokens }).host).toBe(host);
  });

  it.each(["localhost", "127.8.8.8", "::1"])("need no more for %s", (host) => {
    expect(readSettings({ "--host": host }).host).toBe(host);
  });

  it("are taken from flags before the environment, of which an empty variable is none", () => {
    const environment = { PORT: "1", HOST: "::1", DRAIN_DELAY: "", TLS_CERT: "", GRPC_PORT: "" };
    const config = readConfig(parse(["--port", "3"], environment));
    expect(config).toMatchObject({ host: "::1", port: [3], drainDelay: 0 });
  });

  it("without a default are unset by an empty flag", () => {
    const empty = ["--max-connection-age", "--cors-origin", "--tls-cert", "--auth-tokens-file"];
    const flags = Object.fromEntries(empty.map((flag) => [flag, ""]));
    expect(readSettings(flags)).toEqual(readSettings({}));
  });

  it("are named as they were given", () => {
    const environment = { PORT: "x", TLS_CERT: "a.crt", TLS_KEY: "b --tls-cert" };
    const command = parse(["--port", "0"], environment);
    const name = (message: string) => nameAsGiven(message, command);
    expect(name("--tls-cert and --tls-key go together")).toBe("TLS_CERT and TLS_KEY go together");
    expect(name("--port must be even")).toBe("--port must be even");
    expect(name("it is not encrypted (--tls-cert)")).toBe("it is not encrypted (TLS_CERT)");
    expect(name('--host must be even, not "--tls-cert"')).toContain('not "--tls-cert"');
  });
});

it.each([
  ["sqlite:x.db?mode=ro", "no options after ? or #"],
  ["sqlite:x.db#main", "no options after ? or #"],
  ["sqlite::memory:", "not a database in memory"],
  ["sqlite:file:x.db", "not a database in memory"],
  ["sqlite:data/:memory:", "not a database in memory"],
  ["sqlite:///./x.db", "after three slashes it is absolute"],
  ["sqlite:////../x.db", "after three slashes it is absolute"],
  ["sqlite://x.db", "two slashes would be a host"],
  ["sqlite:data/", "not a folder"],
  ["sqlite:a%20b.db", "write a space for %20"],
  ["sqlite:~/x.db", "~ and variables are not expanded"],
  ["sqlite:///~/x.db", "~ and variables are not expanded"],
  ["sqlite:$HOME/x.db", "~ and variables are not expanded"],
  ["sqlite:data/$NAME.db", "~ and variables are not expanded"],
  ["sqlite:M\ufffdller.db", "it must be UTF-8"],
  ["sqlite:'x.db'", "no quotes or spaces around it"],
  ["sqlite: x.db", "no quotes or spaces around it"],
  ["sqlite:x.db\n", "no quotes or spaces around it"],
])("the database URL %j is refused, and why is said", (url, fault) => {
  const read = () => readSettings({ "--database-url": url });
  expect(read).toThrow(ConfigError);
  expect(read).toThrow(/^--database-url must be sqlite:PATH or sqlite:\/\/\/PATH with the path/);
  expect(read).toThrow(fault);
});

it.each([
  ["sqlite:x.db", "x.db"],
  ["sqlite:/x.db", "/x.db"],
  ["sqlite:///x.db", "/x.db"],
  ["sqlite:////x.db", "/x.db"],
  ["sqlite:Müller & Søn's/100% a~b@$c.db", "Müller & Søn's/100% a~b@$c.db"],
])("the database URL %j names the file %j", (url, path) => {
  expect(parseDatabaseUrl("it", url)).toEqual({ kind: "sqlite", path, name: url });
});

it.each([
  ["sqlite:data/a@c.db", "sqlite:data/a@c.db"],
  ["mongodb://host", "mongodb://host"],
  ["mongodb://user:s3cr@t@h1:1,h2/db?tlsKeyPassword=a@b", "mongodb://h1:1,h2/db"],
  ["mongodb+srv://user:s3cret@host/?w=1", "mongodb+srv://host/"],
  ["mongodb://host?appName=a/b", "mongodb://host"],
  ["mongodb://user:s3?cret@host/db", "mongodb://…"],
  ["mongodb://user:s3cret", "mongodb://…"],
  ["mongodb://user:s3cret%40host/db", "mongodb://…"],
  ["mongodb://[::1]:27017,h2", "mongodb://[::1]:27017,h2"],
  ["mongodb://user:s3/cret@host/db", "mongodb://…"],
])("the database URL %s is shown without its secrets", (url, shown) => {
  expect(parseDatabaseUrl("it", url).name).toBe(shown);
});
