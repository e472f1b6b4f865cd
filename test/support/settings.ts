import { Command } from "commander";
import { addSettings, type Config, readConfig, settings } from "../../src/settings/config.ts";

/** Reads settings as flags of the command line. */
export function readSettings(flags: Record<string, string>): Config {
  const command = new Command("serve").exitOverride().configureOutput({ writeErr() {} });
  addSettings(command);
  const args = Object.entries(flags).map(([flag, value]) => `${flag}=${value}`);
  return readConfig(command.parse(args, { from: "user" }));
}

/** Reads the settings among the variables of an environment. */
export function readVariables(environment: Record<string, string>): Config {
  const flags = settings.map(({ long, envVar = "" }) => [long, environment[envVar]]);
  return readSettings(Object.fromEntries(flags.filter(([, value]) => value)));
}
