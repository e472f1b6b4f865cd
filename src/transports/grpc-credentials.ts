import { ServerCredentials } from "@grpc/grpc-js";
import type { Tls } from "./tls.ts";

/** The credentials of a gRPC server: none, or those of TLS, which follow its reloads. */
export function createGrpcCredentials(tls: Tls | undefined): ServerCredentials {
  return tls === undefined ? ServerCredentials.createInsecure() : new TlsCredentials(tls);
}

/** Those that grpc-js makes of files never change. */
class TlsCredentials extends ServerCredentials {
  constructor(tls: Tls) {
    const { requestCert, rejectUnauthorized, ...context } = tls.options();
    super({ requestCert, rejectUnauthorized }, context);
    tls.onReload((renewed) => this.updateSecureContextOptions(renewed));
  }

  override _equals(other: ServerCredentials): boolean {
    return other === this;
  }
}
