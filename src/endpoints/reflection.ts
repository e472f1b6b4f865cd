import { createRegistry, type DescFile, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, type ServiceImpl } from "@connectrpc/connect";
import { file_google_rpc_error_details } from "../../gen/google/rpc/error_details_pb.js";
import { file_google_rpc_status } from "../../gen/google/rpc/status_pb.js";
import { Health } from "../../gen/grpc/health/v1/health_pb.js";
import type {
  ServerReflection,
  ServerReflectionRequest,
  ServerReflectionResponseSchema,
} from "../../gen/grpc/reflection/v1/reflection_pb.js";
import { InvestorService } from "../../gen/investor/v1/investor_pb.js";

type Response = MessageInitShape<typeof ServerReflectionResponseSchema>;
type Reply = NonNullable<Response["messageResponse"]>;

/** The services to describe, and the files of messages that errors contain. */
const services = [Health, InvestorService];
const files = [file_google_rpc_status, file_google_rpc_error_details];

/**
 * Creates server reflection (https://grpc.io/docs/guides/reflection), the same for v1 and v1alpha,
 * whose messages differ only in their names.
 */
export function createReflection(): ServiceImpl<typeof ServerReflection> {
  const roots = new Set([...services.map(({ file }) => file), ...files].flatMap(withImports));
  const byName = new Map(Array.from(roots, (file) => [`${file.name}.proto`, file]));
  const registry = createRegistry(...roots);
  // Once: encoding takes longer than all else that a stranger can ask for.
  const replies = new Map(Array.from(roots, (file) => [file, toDescriptors(file)]));

  /** The file that declares a type, or the type that has a member of this name. */
  function findSymbol(name: string): DescFile | undefined {
    const scope = name.slice(0, name.lastIndexOf("."));
    return (registry.get(name) ?? registry.get(scope))?.file;
  }

  function reply({ messageRequest: { case: kind, value } }: ServerReflectionRequest): Reply {
    if (kind === "listServices") {
      const service = services.map(({ typeName: name }) => ({ name }));
      return { case: "listServicesResponse", value: { service } };
    }
    const file =
      kind === "fileByFilename"
        ? byName.get(value)
        : kind === "fileContainingSymbol"
          ? findSymbol(value)
          : undefined;
    const descriptors = file && replies.get(file);
    if (descriptors) return { case: "fileDescriptorResponse", value: descriptors };
    if (kind === "allExtensionNumbersOfType" && registry.getMessage(value)) {
      return { case: "allExtensionNumbersResponse", value: { baseTypeName: value } };
    }
    const error = { errorCode: Code.NotFound, errorMessage: "there is no such descriptor" };
    return { case: "errorResponse", value: error };
  }

  return {
    async *serverReflectionInfo(requests): AsyncGenerator<Response> {
      for await (const request of requests) {
        const { host: validHost } = request;
        yield { validHost, originalRequest: request, messageResponse: reply(request) };
      }
    },
  };
}

function toDescriptors(file: DescFile) {
  const files = new Set(withImports(file));
  const toBytes = ({ proto }: DescFile) => toBinary(FileDescriptorProtoSchema, proto);
  return { fileDescriptorProto: Array.from(files, toBytes) };
}

function withImports(file: DescFile): DescFile[] {
  return [file, ...file.dependencies.flatMap(withImports)];
}
