/** What clients get that have no credentials, and do nothing wrong. */
import { describe, expect, it, type TestOptions } from "vitest";
import { type Address, clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFile } from "../support/folder.ts";
import { runPython } from "../support/python.ts";
import { paths } from "../support/raw-grpc.ts";
import { aCreate } from "../support/records.ts";
import { createBody, startService } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const calls = 200;
const reason = "CREDENTIALS_MISSING";

/** Makes the calls at once, and prints what each was told. */
const python = `
import grpc, json, sys
channel = grpc.insecure_channel(json.load(sys.stdin))
create = channel.unary_unary("${paths.create}")
for call in [create.future(bytes.fromhex("${createBody().subarray(5).toString("hex")}")) for _ in range(${calls})]:
  error = call.exception()
  details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
  print(json.dumps(error.code().name + (" ${reason}" if b"${reason}" in details else "")), flush=True)
`;

async function byConnectNode(address: Address): Promise<string[]> {
  const { Connect: client } = clientsOf(address);
  const create = async () => {
    const { code, reason } = await failureOf(client.createInvestor(aCreate()));
    return `${code} ${reason}`;
  };
  return Promise.all(Array.from({ length: calls }, create));
}

describe("without credentials, each of 200 calls is refused in full", () => {
  const byGrpcio = ({ port }: Address) => runPython<string>(python, `127.0.0.1:${port}`);
  const clients: [string, string, (address: Address) => Promise<string[]>, TestOptions][] = [
    ["grpcio", "UNAUTHENTICATED", byGrpcio, needs("Python")],
    ["connect-node", "Unauthenticated", byConnectNode, {}],
  ];
  for (const [name, code, callAll, options] of clients)
    it(`of ${name}`, options, async () => {
      const tokens = temporaryFile("orders t0ken-of-the-orders\n");
      const service = await startService({ AUTH_TOKENS_FILE: tokens });
      expect(await callAll(service)).toEqual(Array(calls).fill(`${code} ${reason}`));
    });
});
