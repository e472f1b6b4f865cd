import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server } from "node:net";
import { onTestFinished } from "vitest";

/** Has a server listen on a free port of this machine until the end of the test; returns the port. */
export async function listen(server: Server): Promise<number> {
  onTestFinished(() => void server.close());
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as AddressInfo).port;
}

/** A port that was free just now, for a program that takes no 0. */
export async function freePort(): Promise<number> {
  const server = createServer();
  const port = await listen(server);
  await once(server.close(), "close");
  return port;
}

/**
 * Opens a connection and sends bytes as they are; it is closed with the test.
 *
 * @returns its socket, all that came on it so far, and all once it has closed
 */
export function openWire(port: number, bytes: Uint8Array | string = "") {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  let text = "";
  socket.setEncoding("latin1").on("data", (chunk) => {
    text += chunk;
  });
  const closed = new Promise<string>((resolve) => socket.once("close", () => resolve(text)));
  socket.write(bytes);
  return { socket, received: () => text, closed };
}

/** A request of HTTP/1.1 as it is on the wire, with its length unless the headers have another. */
export function http1(
  method: string,
  path: string,
  headers: Record<string, string | number | undefined>,
  body = "",
): string {
  const all = { host: "localhost", "content-length": Buffer.byteLength(body), ...headers };
  const fields = Object.entries(all)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}: ${value}\r\n`);
  return `${method} ${path} HTTP/1.1\r\n${fields.join("")}\r\n${body}`;
}

/** The statuses of the replies of HTTP/1.1 in a text. */
export function statusesIn(text: string): number[] {
  return Array.from(text.matchAll(/HTTP\/1\.1 (\d{3}) /g), ([, status]) => Number(status));
}
