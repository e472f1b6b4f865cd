import { execFile } from "node:child_process";
import { resolve } from "node:path";
import { promisify } from "node:util";
import { describe, expect, it } from "vitest";
import { institution } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { hasTool } from "./support/tools.ts";

const buf = resolve(import.meta.dirname, "../node_modules/.bin/buf");
const proto = resolve(import.meta.dirname, "../proto");
const execute = promisify(execFile);

type Server = Awaited<ReturnType<typeof startInProcess>>;

const content = { ...institution, type: "INVESTOR_TYPE_INSTITUTION" };

describe.skipIf(!hasTool("grpcurl", ["--version"]))("grpcurl, with no proto file", () => {
  const grpcurl = async ({ grpcPort }: Server, verb: string[], data?: object) => {
    const body = data === undefined ? [] : ["-d", JSON.stringify(data)];
    const address = `localhost:${grpcPort}`;
    const { stdout } = await execute("grpcurl", ["-plaintext", ...body, address, ...verb]);
    return stdout;
  };

  it("lists and describes every service, method and message", async () => {
    const service = await startInProcess();
    const services = (await grpcurl(service, ["list"])).trim().split("\n");
    expect(services).toEqual(["grpc.health.v1.Health", "investor.v1.InvestorService"]);
    for (const symbol of [
      ...services,
      "investor.v1.InvestorService.CreateInvestor",
      "investor.v1.CreateInvestorRequest",
      "investor.v1.InvestorType",
      "google.rpc.Status",
      "google.rpc.BadRequest",
    ]) {
      expect(await grpcurl(service, ["describe", symbol])).toContain(`${symbol} is `);
    }
  });

  it("creates, gets and lists, and reads the details of an error", async () => {
    const service = await startInProcess();
    const method = (name: string) => [`investor.v1.InvestorService/${name}`];
    const created = JSON.parse(await grpcurl(service, method("CreateInvestor"), content));
    expect(created).toMatchObject({ lastName: "Example Capital" });
    const { id } = created;
    expect(JSON.parse(await grpcurl(service, method("GetInvestor"), { id }))).toEqual(created);
    expect(JSON.parse(await grpcurl(service, method("ListInvestors")))).toEqual({
      investors: [created],
    });
    const failed = grpcurl(service, method("CreateInvestor"), { ...content, country: "USA" });
    await expect(failed).rejects.toThrow(/InvalidArgument[\s\S]*"field": "country"/);
    const health = await grpcurl(service, ["grpc.health.v1.Health/Check"]);
    expect(JSON.parse(health)).toEqual({ status: "SERVING" });
  });
});

describe.each([
  ["gRPC and no proto file", ["--protocol", "grpc", "--http2-prior-knowledge"], "grpcPort"],
  ["Connect", ["--protocol", "connect", "--schema", proto], "httpPort"],
  ["gRPC-Web", ["--protocol", "grpcweb", "--schema", proto], "httpPort"],
] as const)("buf curl, with %s", (_, options, port) => {
  const bufCurl = async (service: Server, method: string, data: object) => {
    const url = `http://localhost:${service[port]}/investor.v1.InvestorService/${method}`;
    const { stdout } = await execute(buf, ["curl", ...options, "-d", JSON.stringify(data), url]);
    return JSON.parse(stdout);
  };

  it("creates, gets and lists", async () => {
    const service = await startInProcess();
    const created = await bufCurl(service, "CreateInvestor", content);
    expect(created).toMatchObject({ lastName: "Example Capital" });
    expect(await bufCurl(service, "GetInvestor", { id: created.id })).toEqual(created);
    expect(await bufCurl(service, "ListInvestors", {})).toEqual({ investors: [created] });
  });
});

describe.skipIf(!hasTool("curl", ["--version"]))("curl --http2", () => {
  it("makes its calls on one connection", async () => {
    const { httpPort } = await startInProcess();
    const url = `http://localhost:${httpPort}/v1/investors`;
    const written = ["-w", "%{http_code} %{num_connects}\n"];
    const { stdout } = await execute("curl", ["-s", "--http2", ...written, url, url]);
    expect(stdout).toBe("[]200 1\n[]200 0\n");
  });
});
