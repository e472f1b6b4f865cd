import { pino } from "pino";
import { createGate, type Gate } from "../../src/calls/gate.ts";
import { createTelemetry } from "../../src/calls/telemetry.ts";

/** For what must happen before the timeout of a gate or a service would make it happen. */
export const promptly = { timeout: 4_000 };

/** A gate that admits anybody, as long as there are slots. */
export function openGate(
  maxInFlight: number,
  requestTimeoutMs = 5_000,
  log = pino({ level: "silent" }),
): Gate {
  const telemetry = createTelemetry(pino({ level: "silent" }));
  return createGate({ maxInFlight, requestTimeoutMs, telemetry, log });
}
