import { create } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import { expect, it } from "vitest";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { aCreate } from "../../support/records.ts";
import { type CreateRequest, History } from "./history.ts";

const refused = { reason: "STORE_UNAVAILABLE", message: "" };
const cut = { reason: undefined, message: "the connection broke" };

const recordOf = (request: CreateRequest, id = v7()): Investor =>
  create(InvestorSchema, { ...request, id } as Investor);

function acknowledge(history: History, request = aCreate()): Investor {
  const investor = recordOf(request);
  history.create(request).acknowledged(investor);
  return investor;
}

/** What contradicts a history, by the rule that is broken. */
const contradictions: Record<string, (history: History, request: CreateRequest) => void> = {
  "missing: a get misses what was acknowledged before it"(history) {
    const { id } = acknowledge(history);
    history.get(id).failed({ reason: "INVESTOR_NOT_FOUND", message: "" });
  },
  "missing: a walk misses what another walk has shown"(history, request) {
    history.create(request).failed(cut);
    history.walk("first").saw(recordOf(request));
    history.walk("second").ended();
  },
  "doubled: two records have one request id"(history) {
    const request = aCreate({ requestId: v4() });
    acknowledge(history, request);
    acknowledge(history, request);
  },
  "doubled: a record has another id than the one that an error named"(history, request) {
    const failure = { reason: "OUTCOME_UNKNOWN", message: "", metadata: { id: v7() } };
    history.create(request).failed(failure);
    history.walk("here").saw(recordOf(request));
  },
  "altered: a field has changed"(history) {
    const investor = acknowledge(history);
    history.get(investor.id).found({ ...investor, city: "" });
  },
  "altered: the record of another is in a reply"(history) {
    const other = acknowledge(history);
    history.get(acknowledge(history).id).found(other);
  },
  "unrequested: a record is there that nobody asked for"(history, request) {
    history.walk("here").saw(recordOf(request));
  },
  "refused, and there: a record was refused before it was seen"(history, request) {
    history.create(request).failed(refused);
    history.walk("here").saw(recordOf(request));
  },
  "refused, and there: a record was refused after it was seen"(history, request) {
    const call = history.create(request);
    history.walk("here").saw(recordOf(request));
    call.failed(refused);
  },
  "out of order: a walk goes back"(history) {
    const records = [acknowledge(history), acknowledge(history)];
    const walk = history.walk("here");
    for (const each of records.sort((a, b) => (a.id < b.id ? 1 : -1))) walk.saw(each);
  },
  "unexpected: a call fails in a way that the contract does not know"(history, request) {
    history.create(request).failed({ reason: "INTERNAL", message: "" });
  },
};

it.each(Object.entries(contradictions))("a history is contradicted, %s", (name, happen) => {
  const history = new History();
  happen(history, aCreate());
  expect(() => history.expectSound()).toThrow(name.split(": ")[0]);
});

it("a history takes what agrees with it", () => {
  const history = new History();
  const request = aCreate({ requestId: v4() });
  const walk = history.walk("before");
  history.create(request).failed(refused);
  history.create(request).failed(cut);
  const investor = acknowledge(history, request);
  history.create(request).acknowledged(investor);
  history.get(investor.id).found(investor);
  const other = aCreate({ requestId: request.requestId as string });
  history.create(other).failed({ reason: "REQUEST_ID_REUSED", message: "" });
  // It began before the record was acknowledged.
  walk.ended();
  const fork = history.fork();
  fork.walk("nothing is there").ended();
  expect(() => fork.expectSound()).toThrow("missing");
  history.expectSound();
});
