import { EventEmitter, once } from "node:events";
import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";
import {
  type Health,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from "../../gen/grpc/health/v1/health_pb.js";

/** The health of a server and of its services, which are served or not all together. */
export interface HealthState {
  readonly implementation: ServiceImpl<typeof Health>;
  setServing(isServing: boolean): void;
  /** Ends every watch, whose client then asks another server. */
  end(): void;
}

/**
 * Makes the health service (https://grpc.io/docs/guides/health-checking), which says that nothing
 * is served yet.
 *
 * @param services their full names
 */
export function createHealth(services: string[]): HealthState {
  const names = ["", ...services];
  const changes = new EventEmitter().setMaxListeners(0);
  let status = ServingStatus.NOT_SERVING;
  let isEnding = false;

  return {
    implementation: {
      check({ service }) {
        if (!names.includes(service)) throw new ConnectError("unknown service", Code.NotFound);
        return { status };
      },
      list: () => ({ statuses: Object.fromEntries(names.map((name) => [name, { status }])) }),
      async *watch({ service }, { signal }) {
        const isKnown = names.includes(service);
        let told: ServingStatus | undefined;
        while (!isEnding) {
          const current = isKnown ? status : ServingStatus.SERVICE_UNKNOWN;
          if (current !== told) yield { status: current };
          else await once(changes, "change", { signal });
          told = current;
        }
        throw new ConnectError("the server is shutting down", Code.Unavailable);
      },
    },
    setServing(isServing) {
      status = isServing ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
      changes.emit("change");
    },
    end() {
      isEnding = true;
      changes.emit("change");
    },
  };
}
