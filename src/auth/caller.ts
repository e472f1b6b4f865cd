/** What a caller can be allowed to do. */
export const scopeNames = ["investors:read", "investors:write"] as const;

export type Scope = (typeof scopeNames)[number];

export const allScopes: ReadonlySet<string> = new Set(scopeNames);

export interface Caller {
  /** A name that is unique among all callers, however they authenticate. */
  readonly principal: string;
  /** The name in the log; not a secret. */
  readonly name: string;
  readonly scopes: ReadonlySet<string>;
}

/** Why credentials are invalid, for the log; repeats nothing of them. */
export class InvalidCredentialsError extends Error {}
