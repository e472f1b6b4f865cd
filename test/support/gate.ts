import { pino } from "pino";
import { createGate, type Gate } from "../../src/calls/gate.ts";
import { createTelemetry } from "../../src/calls/telemetry.ts";

/** A gate that anybody may pass, as long as there are places. */
export function openGate(maxInFlight: number): Gate {
  return createGate({ maxInFlight, telemetry: createTelemetry(pino({ level: "silent" })) });
}
