import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import {
  ConfigError,
  environmentName,
  type Given,
  nameAsGiven,
  readConfig,
  settings,
} from "../src/config.ts";
import { withoutSecrets } from "../src/database-url.ts";

function readFlags(flags: Given["flags"]) {
  return readConfig({ flags, environment: {} });
}

describe("the configuration", () => {
  it("reads numbers, durations and choices", () => {
    const flags = {
      "--max-connection-age": "5m",
      "--drain-delay": "1500ms",
      "--cors-origin": "https://a.example, http://b:1",
    };
    expect(readFlags(flags)).toEqual({
      databaseUrl: "sqlite:data/investors.db",
      listen: { host: "127.0.0.1", grpcPort: 50_051, httpPort: 8_080 },
      tls: undefined,
      authentication: undefined,
      corsOrigins: ["https://a.example", "http://b:1"],
      limits: {
        maxInFlight: 1_024,
        maxConnections: 1_024,
        requestTimeoutMs: 10_000,
        maxConnectionAgeMs: 300_000,
      },
      drain: { delayMs: 1_500, timeoutMs: 20_000 },
      logLevel: "info",
    });
  });

  it.each([
    ["--grpc-port", ["", "x", "-1", "65536", "1e3", "80.5", " 80"]],
    ["--http-port", ["", "65536"]],
    ["--cors-origin", ["example.com", "https://a.example/path", "https://a,b"]],
    ["--max-in-flight", ["0", "-5", "many", "1000000000000"]],
    ["--max-connections", ["0", "all"]],
    ["--request-timeout", ["0s", "10", "s", "-1s", "10 s", "1d", "999999h"]],
    ["--max-connection-age", ["0ms", "soon"]],
    ["--drain-delay", ["5", "∞"]],
    ["--drain-timeout", ["", "1y"]],
    ["--host", [""]],
    ["--oidc-audience", ["investors\n"]],
    [
      "--oidc-issuer",
      [
        "issuer.example",
        "http://issuer.example",
        "ftp://127.0.0.1",
        "https://u:p@i.example",
        "https://i.example?a",
      ],
    ],
    ["--allow-insecure", ["", "maybe"]],
    ["--log-level", ["INFO", "verbose", "toString"]],
    [
      "--database-url",
      [
        "",
        "sqlite:",
        "sqlite::memory:",
        "sqlite:file:x?mode=memory",
        "sqlite://",
        "sqlite://y.db",
        "sqlite://host/y.db",
        "postgres://x",
        "investors.db",
        "mongodb://",
        "mongodb://host/db\n",
        "sqlite:investors.db\n",
      ],
    ],
  ])("refuses a wrong %s and names it", (flag, values) => {
    for (const value of values) {
      const read = () => readFlags({ [flag]: value });
      expect(read, value).toThrow(ConfigError);
      expect(read, value).toThrow(flag);
    }
  });

  it("refuses one port for both", () => {
    const read = () => readFlags({ "--grpc-port": "9000", "--http-port": "9000" });
    expect(read).toThrow("--grpc-port and --http-port must differ (both are 9000)");
    expect(readFlags({ "--grpc-port": "0", "--http-port": "0" }).listen.grpcPort).toBe(0);
  });

  it("never repeats a database URL, which may hold a password", () => {
    const read = () => readFlags({ "--database-url": "mysql://root:s3cret@host/db" });
    expect(read).not.toThrow("s3cret");
  });

  it.each([
    ["sqlite:data/a?b@c.db", "sqlite:data/a?b@c.db"],
    ["mongodb://host", "mongodb://host"],
    ["mongodb://user:s3cr@t@h1:1,h2/db?tlsKeyPassword=a@b", "mongodb://h1:1,h2/db"],
    ["mongodb+srv://user:s3cret@host/?w=1", "mongodb+srv://host/"],
    ["mongodb://host?appName=a/b", "mongodb://host"],
    ["mongodb://user:s3?cret@host/db", "mongodb://…"],
    ["mongodb://user:s3/cret@host/db", "mongodb://…"],
  ])("tells of the database URL %s what is no secret", (url, told) => {
    expect(withoutSecrets(readFlags({ "--database-url": url }).databaseUrl)).toBe(told);
  });

  it.each(["0.0.0.0", "::", "10.0.0.1", "investors.example", "127.0.0.1.example"])(
    "refuses to listen on %s unless it is told so",
    (host) => {
      expect(() => readFlags({ "--host": host })).toThrow("--allow-insecure");
      const { listen } = readFlags({ "--host": host, "--allow-insecure": "true" });
      expect(listen.host).toBe(host);
    },
  );

  it.each(["127.0.0.1:8080", "localhost:", "[::1]:80", "http://localhost", "a b", ""])(
    "refuses the host %j",
    (host) => {
      expect(() => readFlags({ "--host": host })).toThrow("--host must be an address or a name");
    },
  );

  it("says of a name, which may not resolve, only that it is not a loopback address", () => {
    const read = () => readFlags({ "--host": "investors.invalid" });
    expect(read).toThrow("--host investors.invalid is not a loopback address, and calls are not");
  });

  it.each([
    ["TLS", { "--tls-cert": "a.crt", "--tls-key": "a.key" }, "not authenticated"],
    ["tokens", { "--auth-tokens-file": "tokens" }, "not encrypted"],
    ["OIDC", { "--oidc-issuer": "https://i.example", "--oidc-audience": "a" }, "not encrypted"],
  ] as const)("refuses to listen beyond this machine with %s alone", (_, flags, lacking) => {
    const read = (more: Given["flags"]) => readFlags({ "--host": "0.0.0.0", ...flags, ...more });
    const refused = expect(() => read({}));
    refused.toThrow(ConfigError);
    refused.toThrow(`calls are ${lacking} (`);
    expect(read({ "--allow-insecure": "true" }).listen.host).toBe("0.0.0.0");
    const both = { "--tls-cert": "a.crt", "--tls-key": "a.key", "--auth-tokens-file": "tokens" };
    expect(read(both).listen.host).toBe("0.0.0.0");
  });

  it.each(["localhost", "127.0.0.1", "127.8.8.8", "::1"])("listens on %s without more", (host) => {
    expect(readFlags({ "--host": host }).listen.host).toBe(host);
  });

  it("prefers a flag to the environment", () => {
    const environment = { GRPC_PORT: "1", HTTP_PORT: "2" };
    const { listen } = readConfig({ flags: { "--grpc-port": "3" }, environment });
    expect(listen).toMatchObject({ grpcPort: 3, httpPort: 2 });
  });

  it("takes an empty environment variable for none", () => {
    for (const flag of Object.keys(settings)) {
      const environment = { [environmentName(flag)]: "" };
      expect(readConfig({ flags: {}, environment }), flag).toEqual(readFlags({}));
      expect(nameAsGiven(new Error(flag), { flags: {}, environment })).toBe(flag);
    }
  });

  it("names each setting as it was given", () => {
    const given: Given = {
      flags: { "--grpc-port": "0" },
      environment: { GRPC_PORT: "x", TLS_CERT: "a.crt", TLS_KEY: "b --tls-cert" },
    };
    const name = (message: string) => nameAsGiven(new ConfigError(message), given);
    expect(name("--tls-cert and --tls-key go together")).toBe("TLS_CERT and TLS_KEY go together");
    expect(name("--grpc-port must be even")).toBe("--grpc-port must be even");
    expect(name("it is not encrypted (--tls-cert)")).toBe("it is not encrypted (TLS_CERT)");
    expect(name('--http-port must be even, not "--tls-cert"')).toContain('not "--tls-cert"');
  });

  it("stands in README as it is", () => {
    const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
    const rows = Array.from(readme.matchAll(/^\| `(--[^|]*)\|(.*)\|(.*)\|(.*)\|$/gm), (cells) =>
      cells.slice(1).map((cell) => cell.replaceAll("`", "").trim()),
    );
    const expected = Object.entries(settings).map(([flag, [, , fallback, help]]) => [
      flag,
      environmentName(flag),
      fallback,
      expect.stringContaining(help),
    ]);
    expect(rows).toEqual(expected);
  });
});
