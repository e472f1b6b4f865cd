/** What a caller can be allowed to do. */
export const scopeNames = ["investors:read", "investors:write"] as const;

export type Scope = (typeof scopeNames)[number];

export const allScopes: ReadonlySet<string> = new Set(scopeNames);

/** Who calls, and what for. */
export interface Caller {
  /** A name that no two callers share, however they authenticate. */
  readonly principal: string;
  /** Its name in the log, which is no secret. */
  readonly name: string;
  readonly scopes: ReadonlySet<string>;
}

/** Why credentials are not valid, for the log; it repeats nothing of them. */
export class InvalidCredentialsError extends Error {}
