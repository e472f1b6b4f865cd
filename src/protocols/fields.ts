import type { OutgoingHttpHeaders } from "node:http";

/**
 * Headers in the form that Node.js sends. Values of `-bin` headers have no padding
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#requests).
 */
export function toFields(headers: Headers | undefined, prefix = ""): OutgoingHttpHeaders {
  const fields: Record<string, string | string[]> = {};
  for (const [name, value] of headers ?? []) {
    const field = prefix + name;
    const sent = name.endsWith("-bin") ? value.replaceAll(/=+(?=,|$)/g, "") : value;
    const known = fields[field];
    fields[field] = known === undefined ? sent : [known, sent].flat();
  }
  return fields;
}
