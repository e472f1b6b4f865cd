import { ConfigError } from "../config.ts";
import { copyRecords, countAll, type Source, type Tally, type Target } from "./copier.ts";
import { type Endpoint, readEndpoint } from "./endpoint.ts";
import { LineError } from "./ndjson-source.ts";
import { openSource, openTarget, refuseSamePlace } from "./open.ts";
import { inDigits, inTime, type ProgressOptions, showProgress } from "./progress.ts";

/** What the command is given. */
interface CopyOptions extends ProgressOptions {
  from: string;
  to: string;
  /** Whose request ids those of an NDJSON file are. */
  principal: string | undefined;
  environment: NodeJS.ProcessEnv;
  /** Stops it between two batches. */
  signal: AbortSignal;
}

/**
 * Copies all records from one store or file to another.
 *
 * @returns whether all of them are there
 * @throws {ConfigError} an argument is wrong, and nothing was done
 */
export async function runCopy(options: CopyOptions): Promise<boolean> {
  const { environment, signal, say, principal } = options;
  const from = readEndpoint("FROM", options.from, environment);
  const to = readEndpoint("TO", options.to, environment);
  if (principal !== undefined && from.url !== undefined) {
    throw new ConfigError("--principal is for an NDJSON file, which alone has request ids");
  }
  if (!/^($|(token|certificate) .|oidc \S+ .)/.test(principal ?? "")) {
    throw new ConfigError(
      '--principal must be "token NAME", "certificate SUBJECT", "oidc ISSUER SUB" or empty',
    );
  }
  const tally: Tally = { copied: 0, present: 0, conflicts: 0, conflictingIds: [], part: undefined };
  const start = performance.now();
  let source: Source | undefined;
  let target: Target | undefined;
  try {
    await refuseSamePlace(from, to);
    source = await openSource(from, { principal: principal ?? "", signal });
    target = await openTarget(to);
    const hideProgress = showProgress(tally, options);
    await copyRecords(source, target, tally, signal).finally(hideProgress);
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    const { message, cause } = error as Error;
    const why = signal.aborted ? `stopped by ${signal.reason}` : `error: ${message}`;
    const next =
      cause instanceof LineError && !signal.aborted
        ? "correct the line and repeat the command"
        : countAll(tally) > 0 && "the same command goes on from there";
    const rest = [why, target && describeRest(tally, to), target && to.url && next];
    say(rest.filter(Boolean).join("; "));
    return false;
  } finally {
    // A failure here changes neither what was printed nor what is durable.
    await Promise.allSettled([target?.close(), source?.close()]);
  }
  if (tally.conflicts > 0) {
    say(`error: ${describe(tally)}`);
    return false;
  }
  const seconds = (performance.now() - start) / 1_000;
  const rate = inDigits(countAll(tally) / seconds);
  say(`${describe(tally)}, in ${inTime(seconds)} (${rate} a second)`);
  return true;
}

function describe({ copied, present, conflicts, conflictingIds }: Tally): string {
  const done = `copied ${countOf(copied)}, and found ${inDigits(present)} already there`;
  if (conflicts === 0) return done;
  const more = conflicts - conflictingIds.length;
  const ids = conflictingIds.join(", ") + (more > 0 ? ` and ${inDigits(more)} more` : "");
  return `conflicts with other content under the same ids, which stays: ${inDigits(conflicts)} (${ids}); ${done}`;
}

function describeRest(tally: Tally, { name, url, path }: Endpoint): string {
  if (url !== undefined) return describe(tally);
  return path === undefined ? `wrote ${countOf(tally.copied)}` : `${name} was not made`;
}

function countOf(records: number): string {
  return records === 1 ? "1 record" : `${inDigits(records)} records`;
}
