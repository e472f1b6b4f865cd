import { expect, it } from "vitest";
import { parseObject } from "../../src/investor/json.ts";

it.each([
  ["", "is not valid JSON"],
  ["city", "is not valid JSON"],
  ['{"city":"a",}', "is not valid JSON at column 13"],
  ['{"city":"a" "state":"b"}', "is not valid JSON at column 13"],
  ["{'city':'a'}", "is not valid JSON at column 2"],
  ['{\n  "city": "a",\n  state: "b"\n}', "is not valid JSON at line 3, column 3"],
  ['{\r\n"city" "a"}', "is not valid JSON at line 2, column 8"],
  ['{"city":"a",', "is not valid JSON at column 13"],
  ['{"city":"a}', "is not valid JSON at column 12"],
  ['{"city":"a\nb"}', "is not valid JSON at column 11"],
  ['{"city":"\\x"}', "is not valid JSON at column 11"],
  ['{"city":01}', "is not valid JSON at column 10"],
  ['{"city":[1,]}', "is not valid JSON"],
  ['{"city":NaN}', "is not valid JSON"],
  ['{"city":"a"}}', "is not valid JSON at column 13"],
  ['{"city":"a"}\n{}', "is not valid JSON at line 2, column 1"],
  ['\ufeff{"city":"a"}', "is not valid JSON"],
  ['["a"]', "is not a JSON object"],
  ["null", "is not a JSON object"],
  ['{"city":"a","city":"b"}', "repeats the member city"],
  ['{"city":"a","zip\\u0043ode":"a","zipCode":"b"}', "repeats the member zipCode"],
  ['{"s3cret":"a","s3cret":"b"}', "repeats a member"],
])("says what is wrong with %j, and where", (text, message) => {
  expect(() => parseObject(text)).toThrow(new Error(message));
});
