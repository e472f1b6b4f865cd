import type { AddressInfo, Server } from "node:net";

/** Why an address cannot be listened on, by the code of the error. */
const reasons: Record<string, string> = {
  EADDRINUSE: "another process uses the port",
  EACCES: "this user may not use the port",
  EADDRNOTAVAIL: "this machine does not have the address",
  ENOTFOUND: "the host is not known",
};

/**
 * Lets a server listen on an address.
 *
 * @param port 0 picks a free one
 * @returns the port
 * @throws {Error} in plain words, if it cannot
 */
export async function listen(server: Server, host: string, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      const { code = "", message } = error;
      reject(new Error(`cannot listen on ${host}:${port}: ${reasons[code] ?? message}`));
    });
    server.listen(port, host, resolve);
  });
  return (server.address() as AddressInfo).port;
}
