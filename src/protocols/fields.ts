import type { OutgoingHttpHeaders } from "node:http";

/**
 * Headers in the form that Node.js sends. Values of `-bin` headers have no padding
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#requests).
 */
export function toFields(headers: Headers | undefined, prefix = ""): OutgoingHttpHeaders {
  const fields: OutgoingHttpHeaders = {};
  for (const [name, value] of headers ?? []) {
    fields[prefix + name] = name.endsWith("-bin") ? value.replaceAll(/=+(?=,|$)/g, "") : value;
  }
  return fields;
}
