import { expect, it } from "vitest";
import { deriveId } from "../../src/investor/ids.ts";

const requestIdV4 = "9b2c1d4e-5f60-4a7b-8c9d-0e1f2a3b4c5d";
const requestIdV7 = "019a2f3c-7b80-7d4e-9f60-a1b2c3d4e5f6";

// A replay has to meet the id of the first create, however old that is.
it.each([
  ["", requestIdV4, "575c10bf-16fc-8077-b657-775b6ea77c0c"],
  ["", requestIdV7, "019a2f3c-7b80-7bd4-8fa6-f8beff006453"],
  ["", requestIdV7.toUpperCase(), "019a2f3c-7b80-7bd4-8fa6-f8beff006453"],
  ["", "1ee0d5a4-3b2c-11f0-9c3d-0242ac120002", "621ffcf8-0bc8-8a2e-aa2a-ccacf45e9416"],
  // Of version 7 by its digit, and of another variant.
  ["", "019a2f3c-7b80-7d4e-cf60-a1b2c3d4e5f6", "fc342b3a-c0d8-8fe3-acfb-e2cdfcab644e"],
  ["token orders", requestIdV7, "019a2f3c-7b80-7744-a260-35e873ad80aa"],
  ["token Łódź", requestIdV4, "b9529c38-fd55-869e-9bbd-a979566ca78a"],
  ["oidc https://issuer.example/ backend", requestIdV4, "f9511449-7a44-8ede-b51b-f03daa4187ae"],
  ["oidc https://issuer.example/ backend", requestIdV7, "019a2f3c-7b80-7360-829c-d00e764bee8e"],
  ["certificate CN=backend.example", requestIdV4, "4addc808-c901-859f-88cb-795e7c106f74"],
  [
    "certificate C=GB\nO=Example\nCN=backend.example",
    requestIdV7,
    "019a2f3c-7b80-7d82-8861-6cab45af5304",
  ],
])("the id of the caller %j with the request id %s is %s", (principal, requestId, id) => {
  expect(deriveId(principal, requestId)).toBe(id);
});
