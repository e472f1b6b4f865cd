/**
 * What the service takes of its clients at most, besides what the settings say. Times are in
 * milliseconds, sizes in bytes. docs/security.md has them in this order.
 */
export const limits = {
  /** Streams of a connection over HTTP/2; clients assume no fewer. */
  streams: 100,
  /** How long a connection over HTTP/2 may be idle. */
  idleMs: 5 * 60_000,
  /** Unanswered requests of a connection over HTTP/1.1. */
  unanswered: 16,
  /** Longer than load balancers usually keep idle connections, so that they never use one that is closing. */
  keepAliveMs: 75_000,
  /** Deadline of a TLS handshake, of a session's settings and of the headers of a request. */
  beginMs: 10_000,
  headerBytes: 16 * 1024,
  /**
   * Requests that strangers have open, on connections that have never carried an admitted call. With 15 KB
   * of headers, each takes some 50 KB until its reply has been read.
   */
  strangerRequests: 2_048,
  /** How long a stranger is safe from closing for the sake of others: most callers are admitted sooner. */
  strangerSafeMs: 1_000,
  /** New streams in a turn of the event loop, of a connection once all together have opened too many. */
  newStreams: 192,
  newStreamsOfAll: 2_048,
  /** Streams that a connection resets: at once, and then a second. */
  resets: 2_000,
  resetsASecond: 1_500,
  /** The largest valid request takes about 9 KiB. */
  requestBytes: 64 * 1024,
  /** Of a public call: room for a name. */
  publicRequestBytes: 4 * 1024,
  /** How long the rest of a refused request may go on arriving: many clients read the reply only after it. */
  restMs: 180_000,
  /** How long it may pause. */
  restPauseMs: 5_000,
  /** How long what is sent of a reply may take to leave the process; on a connection without an admitted call. */
  unreadMs: 120_000,
  strangerUnreadMs: 30_000,
  /** How long a whole list may take in all. */
  wholeListMs: 60 * 60_000,
  /** The share of the calls in flight that one caller can have. */
  shareOfCaller: 7 / 8,
  /** Lists in flight, of pages or whole. */
  lists: 64,
  listsOfCaller: 56,
  wholeLists: 8,
  wholeListsOfCaller: 6,
  /** Pages being read. With more, records would live long enough to reach V8's old generation. */
  pagesAtOnce: 8,
  /** Reflection streams, of all strangers together: one can keep the others from reflection. */
  reflections: 64,
  metrics: 16,
  metricsOfCaller: 1,
  /** Tokens whose check can wait for the OIDC issuer. */
  tokenChecks: 256,
} as const;
