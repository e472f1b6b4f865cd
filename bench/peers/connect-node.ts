/**
 * connect-node's own adapter and one statement a call. Started with the URL of a database;
 * prints the port that it serves on.
 */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { v7 } from "uuid";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";
import { openRecords } from "./records.ts";

const records = await openRecords(String(process.argv[2]));
const adapter = connectNodeAdapter({
  routes: (router) =>
    router.service(InvestorService, {
      async createInvestor({ $typeName: _, $unknown: __, requestId: ___, ...content }) {
        const id = v7();
        await records.insert(id, content);
        return { id, ...(content as object) };
      },
      async getInvestor({ id }) {
        const content = await records.find(id);
        if (content === undefined) throw new ConnectError("not found", Code.NotFound);
        return { id, ...content };
      },
    }),
});
const server = createServer(adapter).listen(0, "127.0.0.1", () => {
  console.log((server.address() as AddressInfo).port);
});
