import {
  type DescFile,
  type DescService,
  type MessageInitShape,
  toBinary,
} from "@bufbuild/protobuf";
import { nestedTypes } from "@bufbuild/protobuf/reflect";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { Code, type ServiceImpl } from "@connectrpc/connect";
import type {
  ServerReflection,
  ServerReflectionRequest,
  ServerReflectionResponseSchema,
} from "../../gen/grpc/reflection/v1/reflection_pb.js";

type Response = MessageInitShape<typeof ServerReflectionResponseSchema>;
type Reply = NonNullable<Response["messageResponse"]>;

/**
 * Creates server reflection (https://grpc.io/docs/guides/reflection), the same for v1 and v1alpha,
 * whose messages differ by their names only.
 *
 * @param services those to describe
 * @param files further files to describe, such as those of error details
 */
export function createReflection(
  services: DescService[],
  files: DescFile[],
): ServiceImpl<typeof ServerReflection> {
  const roots = new Set([...services.map(({ file }) => file), ...files].flatMap(withImports));
  const byName = new Map(Array.from(roots, (file) => [`${file.name}.proto`, file]));
  const bySymbol = new Map(
    Array.from(roots).flatMap((file) => symbolsOf(file).map((symbol) => [symbol, file])),
  );

  function reply({ messageRequest: { case: kind, value } }: ServerReflectionRequest): Reply {
    if (kind === "listServices") {
      const service = services.map(({ typeName: name }) => ({ name }));
      return { case: "listServicesResponse", value: { service } };
    }
    const file =
      kind === "fileByFilename"
        ? byName.get(value)
        : kind === "fileContainingSymbol"
          ? bySymbol.get(value)
          : undefined;
    if (file !== undefined) return { case: "fileDescriptorResponse", value: describe(file) };
    if (kind === "allExtensionNumbersOfType" && bySymbol.has(value)) {
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

function describe(file: DescFile) {
  const files = new Set(withImports(file));
  const toBytes = ({ proto }: DescFile) => toBinary(FileDescriptorProtoSchema, proto);
  return { fileDescriptorProto: Array.from(files, toBytes) };
}

function withImports(file: DescFile): DescFile[] {
  return [file, ...file.dependencies.flatMap(withImports)];
}

/** The full names of all that a file declares. */
function symbolsOf(file: DescFile): string[] {
  return [...nestedTypes(file)].flatMap((type) => {
    const nameOf = ({ name }: { name: string }) => `${type.typeName}.${name}`;
    switch (type.kind) {
      case "message":
        return [type.typeName, ...[...type.fields, ...type.oneofs].map(nameOf)];
      case "service":
        return [type.typeName, ...type.methods.map(nameOf)];
      case "enum": {
        // The names of its values are those of siblings.
        const scope = type.typeName.slice(0, -type.name.length);
        return [type.typeName, ...type.values.map(({ name }) => scope + name)];
      }
      default:
        return [type.typeName];
    }
  });
}
