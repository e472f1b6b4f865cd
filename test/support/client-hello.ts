/**
 * The first records, of 16 KiB each, of the longest ClientHello that OpenSSL takes (RFC 8446, 4 and
 * 5.1): eight are all of it but its end.
 */
export function unfinishedHello(records: number): Buffer {
  return Buffer.concat(
    Array.from({ length: records }, (_, i) => {
      const part = Buffer.alloc(16_384);
      if (i === 0) part.writeUInt32BE((1 << 24) | 131_396);
      return Buffer.concat([Buffer.from([22, 3, 1, 0x40, 0]), part]);
    }),
  );
}
