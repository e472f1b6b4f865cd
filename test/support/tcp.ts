import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { onTestFinished } from "vitest";

/** Opens a connection whose replies are dropped; it is closed with the test. */
export async function openTcp(port: number): Promise<Socket> {
  const socket = connect(port, "127.0.0.1").on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket.resume();
}
