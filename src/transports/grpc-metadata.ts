import { Metadata } from "@grpc/grpc-js";

/**
 * Metadata that sends binary values without padding, as servers should
 * (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#requests); that of
 * grpc-js pads them.
 */
class UnpaddedMetadata extends Metadata {
  override toHttp2Headers() {
    const headers = super.toHttp2Headers();
    for (const [name, value] of Object.entries(headers)) {
      if (!name.endsWith("-bin")) continue;
      headers[name] = [value].flat().map((each) => String(each).replace(/=+$/, ""));
    }
    return headers;
  }

  // grpc-js sends a copy of the metadata of a status.
  override clone(): Metadata {
    const copy = new UnpaddedMetadata();
    copy.merge(this);
    return copy;
  }
}

/** The headers of Connect as grpc-js sends them; the values of `-bin` headers are bytes. */
export function toMetadata(headers: Headers): Metadata {
  const metadata = new UnpaddedMetadata();
  for (const [name, value] of headers) {
    if (name.endsWith("-bin")) {
      for (const part of value.split(",")) metadata.add(name, Buffer.from(part, "base64"));
    } else {
      metadata.add(name, value);
    }
  }
  return metadata;
}

/** The metadata of grpc-js as Connect reads it; the values of `-bin` headers are base64. */
export function toHeaders(metadata: Metadata): Headers {
  const headers = new Headers();
  for (const [name, values] of Object.entries(metadata.toHttp2Headers())) {
    for (const value of [values].flat()) headers.append(name, String(value));
  }
  return headers;
}
