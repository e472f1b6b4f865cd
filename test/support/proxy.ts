import { once } from "node:events";
import { type AddressInfo, connect, createServer } from "node:net";
import { onTestFinished } from "vitest";

/** A way to a server on which answers can get lost. */
interface Proxy {
  readonly port: number;
  /**
   * Drops the next answer that follows a request in which the text stands, and with it the
   * connection; resolves when that has happened.
   */
  loseReplyTo(text: string): Promise<void>;
}

/**
 * Starts a proxy to a port of this machine.
 *
 * @param alter changes what the server sends
 */
export async function startProxy(
  target: number,
  alter = (chunk: Buffer): Buffer => chunk,
): Promise<Proxy> {
  let lost: { text: string; done: PromiseWithResolvers<void> } | undefined;
  const server = createServer((client) => {
    const upstream = connect(target, "127.0.0.1");
    let isArmed = false;
    client.on("data", (chunk) => {
      if (lost && chunk.includes(lost.text)) isArmed = true;
      upstream.write(chunk);
    });
    upstream.on("data", (chunk) => {
      if (!isArmed) {
        client.write(alter(chunk as Buffer));
        return;
      }
      lost?.done.resolve();
      lost = undefined;
      client.destroy();
    });
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      one.on("error", () => {});
      one.on("close", () => other.destroy());
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return {
    port: (server.address() as AddressInfo).port,
    loseReplyTo(text) {
      lost = { text, done: Promise.withResolvers() };
      return lost.done.promise;
    },
  };
}
