/** What clients get that have no credentials, or want to watch health, and do nothing wrong. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { Client, credentials, type ServiceError } from "@grpc/grpc-js";
import { describe, expect, it, onTestFinished, type TestOptions } from "vitest";
import { buildGo, startCallers, toLine } from "../support/callers/callers.ts";
import { type Address, clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { temporaryFile, temporaryFolder } from "../support/folder.ts";
import { runPython } from "../support/python.ts";
import { paths } from "../support/raw-grpc.ts";
import { aCreate, institution } from "../support/records.ts";
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

async function byGrpcJs({ port }: Address): Promise<string[]> {
  const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
  onTestFinished(() => client.close());
  const asItIs = (bytes: Buffer) => bytes;
  const create = () =>
    new Promise<string>((resolve) =>
      client.makeUnaryRequest(
        paths.create,
        asItIs,
        asItIs,
        createBody().subarray(5),
        (error: ServiceError | null) => {
          const [details = ""] = error?.metadata.get("grpc-status-details-bin") ?? [];
          resolve(`${error?.code} ${String(details).includes(reason) ? reason : error?.details}`);
        },
      ),
    );
  return Promise.all(Array.from({ length: calls }, create));
}

async function byConnectNode(ports: Address): Promise<string[]> {
  const { Connect: client } = clientsOf(ports);
  const create = async () => {
    const { code, reason } = await failureOf(client.createInvestor(aCreate()));
    return `${code} ${reason}`;
  };
  return Promise.all(Array.from({ length: calls }, create));
}

async function byCurl({ port }: Address): Promise<string[]> {
  const url = `http://localhost:${port}/v1/investors`;
  const type = "content-type: application/json";
  const args = ["-s", "-w", " %{http_code}", "-H", type, "-d", JSON.stringify(institution), url];
  const told: string[] = [];
  const callInTurn = async () => {
    for (let i = 0; i < calls / 20; i += 1) {
      const { stdout } = await promisify(execFile)("curl", args);
      told.push(stdout.replace(/^.*"reason":"(\w+)".* (\d+)$/, "$2 $1"));
    }
  };
  await Promise.all(Array.from({ length: 20 }, callInTurn));
  return told;
}

describe("without credentials, each of 200 calls is refused in full", () => {
  const byGrpcio = ({ port }: Address) => runPython<string>(python, `127.0.0.1:${port}`);
  const clients: [string, string, (ports: Address) => Promise<string[]>, TestOptions][] = [
    ["grpc-js", "16", byGrpcJs, {}],
    ["grpcio", "UNAUTHENTICATED", byGrpcio, needs("Python")],
    ["connect-node", "Unauthenticated", byConnectNode, {}],
    ["curl", "401", byCurl, needs("curl")],
  ];
  for (const [name, code, callAll, options] of clients)
    it(`of ${name}`, options, async () => {
      const tokens = temporaryFile("orders t0ken-of-the-orders\n");
      const service = await startService({ AUTH_TOKENS_FILE: tokens });
      expect(await callAll(service)).toEqual(Array(calls).fill(`${code} ${reason}`));
    });
});

it(
  "a client in Go that wants to watch the health of the service calls it",
  needs("Go"),
  async () => {
    const service = await startService();
    const config = {
      loadBalancingConfig: [{ round_robin: {} }],
      healthCheckConfig: { serviceName: "investor.v1.InvestorService" },
      methodConfig: [{ name: [{}], waitForReady: true }],
    };
    const target = `127.0.0.1:${service.port}`;
    const file = temporaryFile(JSON.stringify(config));
    const { input, created, failures, finished } = startCallers([
      ...buildGo(temporaryFolder()),
      "grpc",
      target,
      file,
      "",
    ]);
    for (let i = 0; i < calls; i += 1) input.write(toLine(aCreate()));
    input.end();
    await finished;
    expect(failures).toEqual([]);
    expect(created).toHaveLength(calls);
  },
);
