import {
  type DescMessage,
  fromBinary,
  fromJsonString,
  type JsonReadOptions,
  type JsonWriteOptions,
  type Message,
  toJsonString,
} from "@bufbuild/protobuf";
import { type Compression, compressionNegotiate } from "@connectrpc/connect/protocol";
import { malformedRequest } from "../failures.ts";
import { createEncoder } from "./investor-binary.ts";
import { readObject } from "./rest-request.ts";

export type JsonOptions = Partial<JsonReadOptions & JsonWriteOptions> & {
  /** Throws on bytes that are not UTF-8. */
  textDecoder: { decode(bytes?: Uint8Array): string };
};

/** How to read binary messages. Keeping unknown fields would take a hundred times their size. */
export const binaryOptions = { readUnknownFields: false };

/** The smallest message to compress, in bytes, as in connect-node. */
const minBytes = 1_024;

export type Messages = ReturnType<typeof createMessages>;

/** Reads and writes the messages of unary calls: as protobuf or JSON, compressed or not. */
export function createMessages(jsonOptions: JsonOptions, compressions: Compression[]) {
  const encode = createEncoder();

  /** @throws {Failure} MALFORMED_REQUEST; it repeats no value */
  function decode(desc: DescMessage, bytes: Uint8Array, isJson: boolean): Message {
    try {
      return isJson
        ? fromJsonString(desc, jsonOptions.textDecoder.decode(bytes), jsonOptions)
        : fromBinary(desc, bytes, binaryOptions);
    } catch (error) {
      // Throws an error with the position of wrong JSON; the decoder's message may repeat the body.
      if (isJson) readObject(bytes);
      throw malformedRequest(error);
    }
  }

  return {
    /**
     * The compression of a request, by its name; null for none.
     *
     * @throws {ConnectError} UNIMPLEMENTED: it is not known
     */
    findCompression(name: string | string[] = "identity"): Compression | null {
      const found = compressionNegotiate(compressions, String(name), null, "accept-encoding");
      if (found.error) throw found.error;
      return found.request;
    },

    /**
     * Reads a message; later, if it has to be unpacked.
     *
     * @param maxBytes the largest message to unpack
     * @throws {Failure} MALFORMED_REQUEST or MESSAGE_TOO_LARGE
     */
    read(
      desc: DescMessage,
      bytes: Uint8Array,
      isJson: boolean,
      compression: Compression | null,
      maxBytes: number,
    ): Message | Promise<Message> {
      if (compression === null) return decode(desc, bytes, isJson);
      return compression
        .decompress(bytes, maxBytes)
        .then((unpacked) => decode(desc, unpacked, isJson));
    },

    /**
     * Hands a message over to be sent: later, if it is compressed. Bytes are valid until the next
     * message is written.
     *
     * @param accepted the encodings that the client accepts, if any
     */
    write(
      desc: DescMessage,
      message: Message,
      isJson: boolean,
      accepted: string | string[] | undefined,
      send: (bytes: Uint8Array | string, encoding?: string) => void,
    ): void | Promise<void> {
      const bytes = isJson ? toJsonString(desc, message, jsonOptions) : encode(desc, message);
      if (accepted === undefined || Buffer.byteLength(bytes) < minBytes) return send(bytes);
      const { response: compression } = compressionNegotiate(
        compressions,
        null,
        String(accepted),
        "",
      );
      if (compression === null) return send(bytes);
      return compression
        .compress(Buffer.from(bytes as Uint8Array))
        .then((packed) => send(packed, compression.name));
    },
  };
}
