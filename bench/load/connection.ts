/** A connection by which calls of one method are made. */
export interface Connection {
  /**
   * Makes a call and gives the message of its answer.
   *
   * @throws {Error} the status of the answer is not that of a success
   */
  call(message: Buffer): Promise<Buffer>;
  close(): void;
}
