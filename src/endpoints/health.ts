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
  let status = ServingStatus.NOT_SERVING;

  // Without Watch, a stream without end that anybody could open: clients then take the service for healthy.
  const implementation: Partial<ServiceImpl<typeof Health>> = {
    check({ service }) {
      if (!names.includes(service)) throw new ConnectError("unknown service", Code.NotFound);
      return { status };
    },
    list: () => ({ statuses: Object.fromEntries(names.map((name) => [name, { status }])) }),
  };

  return {
    implementation,
    isServing: () => status === ServingStatus.SERVING,
    setServing(isServing: boolean) {
      status = isServing ? ServingStatus.SERVING : ServingStatus.NOT_SERVING;
    },
  };
}
