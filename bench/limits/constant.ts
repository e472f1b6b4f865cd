import { create } from "@bufbuild/protobuf";
import { InvestorSchema } from "../../gen/investor/v1/investor_pb.js";
import { content } from "../content.ts";

/** The record with which the limits answer. */
export const constant = create(InvestorSchema, {
  ...content,
  id: "01a1fb03-1d78-721b-8a61-2663c8de88a3",
});
