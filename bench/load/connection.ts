/** A connection by which calls are made. */
export interface Connection {
  /**
   * Makes a call and gives the message of its reply.
   *
   * @throws {Error} the status of the reply is not that of a success
   */
  call(message: Buffer): Promise<Buffer>;
  close(): void;
}
