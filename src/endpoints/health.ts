import { Code, type ServiceImpl } from "@connectrpc/connect";
import {
  type Health,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from "../../gen/grpc/health/v1/health_pb.js";
import { Failure } from "../failures.ts";

/**
 * Creates the health service (https://grpc.io/docs/guides/health-checking), without Watch, a stream
 * without end that anybody could open: clients then take the service for healthy.
 *
 * @param services their full names; all share one status
 */
export function createHealth(
  services: string[],
  isReady: () => boolean,
): Partial<ServiceImpl<typeof Health>> {
  const names = ["", ...services];
  const current = () => ({ status: isReady() ? ServingStatus.SERVING : ServingStatus.NOT_SERVING });
  return {
    check({ service }) {
      if (!names.includes(service)) throw new Failure("unknown service", { code: Code.NotFound });
      return current();
    },
    list: () => ({ statuses: Object.fromEntries(names.map((name) => [name, current()])) }),
  };
}
