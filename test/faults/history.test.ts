import { create } from "@bufbuild/protobuf";
import { v4, v7 } from "uuid";
import { describe, expect, it } from "vitest";
import { type Investor, InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { aCreate } from "../support/records.ts";
import { type CreateRequest, History, type Rule } from "./history.ts";

const refused = { reason: "STORE_UNAVAILABLE", message: "" };
const cut = { reason: "", message: "the connection broke" };

const recordOf = (request: CreateRequest, id = v7()): Investor =>
  create(InvestorSchema, { ...request, id } as Investor);

function acknowledge(history: History, request = aCreate()): Investor {
  const investor = recordOf(request);
  history.create(request).acknowledged(investor);
  return investor;
}

const contradictions: [string, Rule, (history: History) => void][] = [
  [
    "a get that misses what was acknowledged before it",
    "missing",
    (history) => {
      const { id } = acknowledge(history);
      history.get(id).failed({ reason: "INVESTOR_NOT_FOUND", message: "" });
    },
  ],
  [
    "a walk that misses what another walk has shown",
    "missing",
    (history) => {
      const request = aCreate();
      history.create(request).failed(cut);
      history.walk("first").saw(recordOf(request));
      history.walk("second").ended();
    },
  ],
  [
    "two records of one request id",
    "doubled",
    (history) => {
      const request = aCreate({ requestId: v4() });
      acknowledge(history, request);
      acknowledge(history, request);
    },
  ],
  [
    "another id than the one that was told",
    "doubled",
    (history) => {
      const request = aCreate();
      const failure = { reason: "OUTCOME_UNKNOWN", message: "", id: v7() };
      history.create(request).failed(failure);
      history.walk("here").saw(recordOf(request));
    },
  ],
  [
    "a field that has changed",
    "altered",
    (history) => {
      const investor = acknowledge(history);
      history.get(investor.id).found({ ...investor, city: "" });
    },
  ],
  [
    "the record of another in a reply",
    "altered",
    (history) => {
      const other = acknowledge(history);
      history.get(acknowledge(history).id).found(other);
    },
  ],
  [
    "a record that nobody asked for",
    "unrequested",
    (history) => history.walk("here").saw(recordOf(aCreate())),
  ],
  [
    "a record that was refused before it was seen",
    "refused, and there",
    (history) => {
      const request = aCreate();
      history.create(request).failed(refused);
      history.walk("here").saw(recordOf(request));
    },
  ],
  [
    "a record that was refused after it was seen",
    "refused, and there",
    (history) => {
      const request = aCreate();
      const call = history.create(request);
      history.walk("here").saw(recordOf(request));
      call.failed(refused);
    },
  ],
  [
    "a walk that goes back",
    "out of order",
    (history) => {
      const [first, second] = [acknowledge(history), acknowledge(history)].sort((a, b) =>
        a.id < b.id ? 1 : -1,
      );
      const walk = history.walk("here");
      walk.saw(first as Investor);
      walk.saw(second as Investor);
    },
  ],
  [
    "a failure that the contract does not know",
    "unexpected",
    (history) => history.create(aCreate()).failed({ reason: "INTERNAL", message: "" }),
  ],
];

describe("a history", () => {
  it.each(contradictions)("is contradicted by %s", (_, rule, happen) => {
    const history = new History();
    happen(history);
    expect(history.violations.map((each) => each.rule)).toContain(rule);
    expect(() => history.expectSound()).toThrow(rule);
  });

  it("takes what agrees with it", () => {
    const history = new History();
    const request = aCreate({ requestId: v4() });
    const walk = history.walk("before");
    history.create(request).failed(refused);
    history.create(request).failed(cut);
    const investor = acknowledge(history, request);
    history.create(request).acknowledged(investor);
    history.get(investor.id).found(investor);
    history.create(aCreate({ requestId: request.requestId as string })).failed({
      reason: "REQUEST_ID_REUSED",
      message: "",
    });
    // It began before the record was acknowledged.
    walk.ended();
    history.expectSound();
  });
});
