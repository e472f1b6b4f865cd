import { create } from "@bufbuild/protobuf";
import { InvestorSchema, InvestorType } from "../gen/investor/v1/investor_pb.js";

/** The first name in a template, replaced by one of the same length in each create. */
export const mark = "#".repeat(24);

/** The record of all measurements in the service's own JSON. */
export const jsonContent = {
  type: "individual",
  firstName: mark,
  middleName: "King",
  lastName: "Lovelace",
  addressLine1: "12 St James Square",
  addressLine2: "",
  city: "London",
  state: "",
  zipCode: "SW1Y 4JH",
  country: "gb",
  language: "en",
};

/** The same for protobuf. */
export const content = { ...jsonContent, type: InvestorType.INDIVIDUAL };

/** The record that bare servers reply with. */
export const constant = create(InvestorSchema, {
  ...content,
  id: "01a1fb03-1d78-721b-8a61-2663c8de88a3",
});
