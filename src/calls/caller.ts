/** What a caller can be allowed to do. */
export const scopeNames = ["investors:read", "investors:write"] as const;

/** One of {@link scopeNames}. */
export type Scope = (typeof scopeNames)[number];

/** Who calls, and what for. */
export interface Caller {
  /** A name that no two callers share, whichever way they are known. */
  readonly principal: string;
  /** What it may do; others than {@link scopeNames} have no meaning here. */
  readonly scopes: ReadonlySet<string>;
}
