import { ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { InvestorService, InvestorType } from "investor-records-client";
import { BadRequestSchema, ErrorInfoSchema } from "investor-records-client/google/rpc";
import { v7 } from "uuid";

const [baseUrl = "http://localhost:8080"] = process.argv.slice(2);
const client = createClient(
  InvestorService,
  // The deadline of every call, above the timeout of the service, which replies with a reason.
  createConnectTransport({ baseUrl, httpVersion: "1.1", defaultTimeoutMs: 15_000 }),
);

const ada = {
  type: InvestorType.INDIVIDUAL,
  firstName: "Ada",
  middleName: "",
  lastName: "Lovelace",
  addressLine1: "12 St James Square",
  addressLine2: "",
  city: "London",
  state: "",
  zipCode: "SW1Y 4JH",
  country: "gb",
  language: "en",
  requestId: v7(),
};
const created = await client.createInvestor(ada);
console.log(`created ${created.id}`);

// With the same request id and content, a repeated call returns the record that is there.
const replayed = await client.createInvestor(ada);
console.log(`replayed ${replayed.id}`);

try {
  await client.createInvestor({ ...ada, country: "England" });
} catch (error) {
  if (!(error instanceof ConnectError)) throw error;
  console.log(`refused: ${error.rawMessage}`);
  for (const { reason } of error.findDetails(ErrorInfoSchema)) console.log(`reason: ${reason}`);
  for (const { fieldViolations } of error.findDetails(BadRequestSchema)) {
    for (const { field, description } of fieldViolations) console.log(`${field}: ${description}`);
  }
}

let count = 0;
let pageToken = "";
do {
  const page = await client.listInvestors({ pageToken });
  count += page.investors.length;
  pageToken = page.nextPageToken;
} while (pageToken !== "");
console.log(`listed ${count}`);
