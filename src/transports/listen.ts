import type { AddressInfo, Server } from "node:net";

/**
 * Lets a server listen on an address.
 *
 * @param port 0 picks a free one
 * @returns the port
 * @throws {Error} in plain words, if it cannot
 */
export async function listen(server: Server, host: string, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error) => {
      reject(new Error(`cannot listen on ${host}:${port}: ${error.message}`));
    });
    server.listen(port, host, resolve);
  });
  return (server.address() as AddressInfo).port;
}
