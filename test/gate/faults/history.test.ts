import { create } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import { expect, it } from "vitest";
import { type Investor, InvestorSchema } from "../../../gen/investor/v1/investor_pb.js";
import { aCreate } from "../../support/records.ts";
import { type CreateRequest, History, type Rule } from "./history.ts";

const refused = { reason: "STORE_UNAVAILABLE", message: "" };
const cut = { reason: undefined, message: "the connection broke" };

const recordOf = (request: CreateRequest, id = v7()): Investor =>
  create(InvestorSchema, { ...request, id } as Investor);

function acknowledge(history: History, request = aCreate()): Investor {
  const investor = recordOf(request);
  history.create(request).acknowledged(investor);
  return investor;
}

const contradictions: Record<string, [Rule, (history: History, request: CreateRequest) => void]> = {
  "a get that misses what was acknowledged before it": [
    "missing",
    (history) => {
      const { id } = acknowledge(history);
      history.get(id).failed({ reason: "INVESTOR_NOT_FOUND", message: "" });
    },
  ],
  "a walk that misses what another walk has shown": [
    "missing",
    (history, request) => {
      history.create(request).failed(cut);
      history.walk("first").saw(recordOf(request));
      history.walk("second").ended();
    },
  ],
  "two records of one request id": [
    "doubled",
    (history) => {
      const request = aCreate({ requestId: v4() });
      acknowledge(history, request);
      acknowledge(history, request);
    },
  ],
  "another id than the one that an error named": [
    "doubled",
    (history, request) => {
      const failure = { reason: "OUTCOME_UNKNOWN", message: "", metadata: { id: v7() } };
      history.create(request).failed(failure);
      history.walk("here").saw(recordOf(request));
    },
  ],
  "a field that has changed": [
    "altered",
    (history) => {
      const investor = acknowledge(history);
      history.get(investor.id).found({ ...investor, city: "" });
    },
  ],
  "the record of another in a reply": [
    "altered",
    (history) => {
      const other = acknowledge(history);
      history.get(acknowledge(history).id).found(other);
    },
  ],
  "a record that nobody asked for": [
    "unrequested",
    (history, request) => history.walk("here").saw(recordOf(request)),
  ],
  "a record that was refused before it was seen": [
    "refused, and there",
    (history, request) => {
      history.create(request).failed(refused);
      history.walk("here").saw(recordOf(request));
    },
  ],
  "a record that was refused after it was seen": [
    "refused, and there",
    (history, request) => {
      const call = history.create(request);
      history.walk("here").saw(recordOf(request));
      call.failed(refused);
    },
  ],
  "a walk that goes back": [
    "out of order",
    (history) => {
      const records = [acknowledge(history), acknowledge(history)];
      const walk = history.walk("here");
      for (const each of records.sort((a, b) => (a.id < b.id ? 1 : -1))) walk.saw(each);
    },
  ],
  "a failure that the contract does not know": [
    "unexpected",
    (history, request) => history.create(request).failed({ reason: "INTERNAL", message: "" }),
  ],
};

it.each(Object.entries(contradictions))("a history is contradicted by %s", (_, [rule, happen]) => {
  const history = new History();
  happen(history, aCreate());
  expect(history.violations.map((each) => each.rule)).toContain(rule);
  expect(() => history.expectSound()).toThrow(rule);
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
  history.expectSound();
});
