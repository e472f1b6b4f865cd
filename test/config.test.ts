import { describe, expect, it } from "vitest";
import { ConfigError, readConfig, type Settings, withoutSecrets } from "../src/config.ts";

const settings: Settings = {
  databaseUrl: "sqlite:data/investors.db",
  host: "127.0.0.1",
  grpcPort: "50051",
  httpPort: "8080",
  allowInsecure: "false",
  maxInFlight: "1024",
  requestTimeout: "10s",
  drainDelay: "0s",
  drainTimeout: "20s",
  logLevel: "info",
};

describe("the configuration", () => {
  it("reads numbers, durations and choices", () => {
    const changes = {
      maxConnectionAge: "5m",
      drainDelay: "1500ms",
      corsOrigin: "https://a.example, http://b:1",
    };
    expect(readConfig({ ...settings, ...changes })).toEqual({
      databaseUrl: "sqlite:data/investors.db",
      host: "127.0.0.1",
      grpcPort: 50_051,
      httpPort: 8_080,
      tls: undefined,
      authentication: { tokensFile: undefined, oidc: undefined, clientCertificates: false },
      corsOrigins: ["https://a.example", "http://b:1"],
      maxInFlight: 1_024,
      requestTimeoutMs: 10_000,
      maxConnectionAgeMs: 300_000,
      drainDelayMs: 1_500,
      drainTimeoutMs: 20_000,
      logLevel: "info",
    });
  });

  it.each([
    ["grpcPort", "--grpc-port", ["", "x", "-1", "65536", "1e3", "80.5", " 80"]],
    ["httpPort", "--http-port", ["", "65536"]],
    ["corsOrigin", "--cors-origin", ["example.com", "https://a.example/path", "https://a,b"]],
    ["maxInFlight", "--max-in-flight", ["0", "-5", "many", "1000000000000"]],
    ["requestTimeout", "--request-timeout", ["0s", "10", "s", "-1s", "10 s", "1d", "999999h"]],
    ["maxConnectionAge", "--max-connection-age", ["0ms", "soon"]],
    ["drainDelay", "--drain-delay", ["5", "∞"]],
    ["drainTimeout", "--drain-timeout", ["", "1y"]],
    ["logLevel", "--log-level", ["INFO", "verbose", "toString"]],
    [
      "databaseUrl",
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
      ],
    ],
  ])("refuses a wrong %s and names %s", (name, flag, values) => {
    for (const value of values) {
      const read = () => readConfig({ ...settings, [name]: value });
      expect(read, value).toThrow(ConfigError);
      expect(read, value).toThrow(flag);
    }
  });

  it("never repeats a database URL, which may hold a password", () => {
    const read = () => readConfig({ ...settings, databaseUrl: "mysql://root:s3cret@host/db" });
    expect(read).not.toThrow("s3cret");
  });

  it.each([
    ["sqlite:data/a?b@c.db", "sqlite:data/a?b@c.db"],
    ["mongodb://host", "mongodb://host"],
    ["mongodb://user:s3cr@t@h1:1,h2/db?tlsKeyPassword=a@b", "mongodb://h1:1,h2/db"],
    ["mongodb+srv://user:s3cret@host/?w=1", "mongodb+srv://host/"],
  ])("tells of the database URL %s what is no secret", (url, told) => {
    expect(withoutSecrets(readConfig({ ...settings, databaseUrl: url }).databaseUrl)).toBe(told);
  });

  it.each(["0.0.0.0", "::", "10.0.0.1", "investors.example", "127.0.0.1.example"])(
    "refuses to listen on %s unless it is told so",
    (host) => {
      expect(() => readConfig({ ...settings, host })).toThrow("--allow-insecure");
      expect(readConfig({ ...settings, host, allowInsecure: "true" }).host).toBe(host);
    },
  );

  it.each(["localhost", "127.0.0.1", "127.8.8.8", "::1"])("listens on %s without more", (host) => {
    expect(readConfig({ ...settings, host }).host).toBe(host);
  });
});
