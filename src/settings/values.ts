import { isIP } from "node:net";
import { InvalidArgumentError } from "commander";

export function text(value: string): string {
  // For example the line feed that ends most files.
  if (/\p{Cc}/u.test(value)) throw wrongValue("without control characters");
  return value;
}

export function host(value: string): string {
  if (isIP(value) !== 0 || /^[^\s\p{Cc}:/[\]]+$/u.test(value)) return value;
  throw wrongValue("an address or a name, without brackets and port");
}

export function origins(value: string): string[] {
  const all = value
    .split(",")
    .filter(Boolean)
    .map((each) => each.trim());
  // Browsers send no other forms, such as wildcards or ftp://app.example.
  const isOrigin = (each: string) =>
    each === "*" || (/^https?:[^*]+$/.test(each) && URL.parse(each)?.origin === each);
  if (all.length > 0 && all.every(isOrigin)) return all;
  throw wrongValue(
    "* or origins such as https://app.example, without wildcards, separated by commas",
  );
}

export function integer(min: number, max: number) {
  return (value: string): number => {
    const number = /^\d{1,9}$/.test(value) ? Number(value) : Number.NaN;
    if (number >= min && number <= max) return number;
    throw wrongValue(`a whole number from ${min} to ${max}`);
  };
}

/** Ports to listen on, each once; 0 is any free one. */
export function ports(value: string): number[] {
  const all = value.split(",").map((each) => (/^ *\d{1,5} *$/.test(each) ? Number(each) : NaN));
  const named = all.filter((each) => each !== 0);
  if (all.every((each) => each <= 65_535) && new Set(named).size === named.length) return all;
  throw wrongValue("a port from 0 to 65535, or several, each once, separated by commas");
}

/** Parses a duration to milliseconds, up to the maximum of a Node.js timer. */
export function duration(min: 0 | 1) {
  const msByUnit: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };
  return (value: string): number => {
    const [, amount, unit = ""] = /^(\d{1,9})(ms|s|m|h)$/.exec(value) ?? [];
    const ms = Number(amount) * (msByUnit[unit] ?? Number.NaN);
    if (ms >= min && ms < 2 ** 31) return ms;
    const least = min === 0 ? "0s" : "1ms";
    throw wrongValue(`a duration such as 500ms, 10s, 5m or 1h (${least} to 24 days)`);
  };
}

/** Whether a listening address is reachable from this machine only. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host);
}

/** Whether data from a URL surely comes from its host: over https, or from this machine. */
export function isSecureUrl(text: string): boolean {
  const { protocol, hostname = "" } = URL.parse(text) ?? {};
  const isOfThisMachine = isLoopback(hostname.replace(/^\[|\]$/g, ""));
  return protocol === "https:" || (protocol === "http:" && isOfThisMachine);
}

function wrongValue(accepted: string): InvalidArgumentError {
  return new InvalidArgumentError(`It must be ${accepted}.`);
}
