import { credentials } from "@grpc/grpc-js";
import { InvestorType } from "investor-records-client";
import { createInvestorClient, InvestorError } from "investor-records-client/grpc";
import { v7 } from "uuid";

const [address = "localhost:8080"] = process.argv.slice(2);
// It repeats each call, which survives a restart of the service within its deadline of 30 seconds.
const client = createInvestorClient(address, credentials.createInsecure());

const ada = {
  type: InvestorType.INDIVIDUAL,
  firstName: "Ada",
  lastName: "Lovelace",
  addressLine1: "12 St James Square",
  city: "London",
  zipCode: "SW1Y 4JH",
  country: "gb",
  language: "en",
  // For a job that must not create it again if it is started again, keep this id.
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
  if (!(error instanceof InvestorError)) throw error;
  console.log(`refused: ${error.reason}`);
  for (const { field, description } of error.violations) console.log(`${field}: ${description}`);
}

let count = 0;
for await (const _ of client.investors()) count += 1;
console.log(`listed ${count}`);

client.close();
