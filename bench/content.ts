import { InvestorType } from "../gen/investor/v1/investor_pb.js";

/** What stands where a name that no other record has is put. */
export const mark = "#".repeat(24);

/** The record of all measurements in plain JSON, but for its name. */
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

/** The same by protobuf. */
export const content = { ...jsonContent, type: InvestorType.INDIVIDUAL };
