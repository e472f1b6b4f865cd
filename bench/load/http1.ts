import { connect } from "node:net";

/**
 * Opens an HTTP/1.1 connection that sends whole requests, one at a time, and reads replies with
 * a content-length.
 */
export function openHttp1(port: number) {
  const socket = connect({ port, host: "127.0.0.1", noDelay: true });
  let waiting: PromiseWithResolvers<Buffer> | undefined;
  let rest: Buffer = Buffer.alloc(0);
  const fail = (error: Error) => waiting?.reject(error);
  socket.on("error", fail);
  socket.on("close", () => fail(new Error("the connection was closed")));
  socket.on("data", (chunk: Buffer) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const end = rest.indexOf("\r\n\r\n");
    if (end === -1) return;
    const headers = rest.toString("latin1", 0, end);
    const length = Number(/^content-length: (\d+)/im.exec(headers)?.[1] ?? Number.NaN);
    if (rest.length < end + 4 + length) return;
    const body = rest.subarray(end + 4, end + 4 + length);
    rest = rest.subarray(end + 4 + length);
    if (headers.startsWith("HTTP/1.1 200 ")) waiting?.resolve(body);
    else fail(new Error(`the reply was ${headers.slice(0, 12)}: ${body}`));
  });
  return {
    call(message: Buffer): Promise<Buffer> {
      waiting = Promise.withResolvers();
      socket.write(message);
      return waiting.promise;
    },
    close: () => socket.destroy(),
  };
}
