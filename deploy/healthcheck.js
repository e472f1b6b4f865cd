// Exits with 0 if the service in the same container, configured by the same environment, is ready.
import http from "node:http";
import https from "node:https";

const { HOST = "", PORT = "", TLS_CERT = "" } = process.env;
const loopback = [
  { address: "127.0.0.1", family: 4 },
  { address: "::1", family: 6 },
];
const options = {
  host: ["", "0.0.0.0"].includes(HOST) ? "127.0.0.1" : HOST,
  // A service on "::" may be served by one of the two alone.
  ...(HOST === "::" && { host: "localhost", lookup: (_, __, done) => done(null, loopback) }),
  // Of several, the first.
  port: Number.parseInt(PORT || "8080", 10),
  path: "/readyz",
  timeout: 4_000,
  // Nothing secret is sent or received, and the certificate need not name this address.
  rejectUnauthorized: false,
};
(TLS_CERT ? https : http)
  .get(options, ({ statusCode }) => process.exit(statusCode === 200 ? 0 : 1))
  .on("timeout", () => process.exit(1))
  .on("error", () => process.exit(1));
