/** A setting or an argument is wrong; the message names it and what it accepts. */
export class ConfigError extends Error {
  override name = "ConfigError";
}
