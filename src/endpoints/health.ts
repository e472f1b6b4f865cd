import { EventEmitter, once } from "node:events";
import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";
import {
  type Health,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from "../../gen/grpc/health/v1/health_pb.js";

/**
 * Creates the health service (https://grpc.io/docs/guides/health-checking). All services share one
 * status, at first NOT_SERVING.
 *
 * @param services their full names
 */
export function createHealth(services: string[]) {
  const names = ["", ...services];
  const changes = new EventEmitter().setMaxListeners(0);
  let status = ServingStatus.NOT_SERVING;
  let isEnding = false;

  const implementation: ServiceImpl<typeof Health> = {
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
  };

  return {
    implementation,
    isServing: () => status === ServingStatus.SERVING,
    setServing(isServing: boolean) {
      status = isServing ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
      changes.emit("change");
    },
    /** Ends every watch, so that its client asks another server. */
    end() {
      isEnding = true;
      changes.emit("change");
    },
  };
}
