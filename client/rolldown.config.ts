import { defineConfig } from "rolldown";

const input = {
  index: "gen/investor/v1/investor_pb.js",
  rpc: "gen/google/rpc/error_details_pb.js",
  connect: "src/connect.ts",
  grpc: "src/grpc.ts",
};
const external = /^[^./]/;
const fileNames = (folder: string) => ({
  entryFileNames: `${folder}/[name].js`,
  chunkFileNames: `${folder}/[name].js`,
});

/**
 * Builds the package as CommonJS, and modules that export the same: a process has one class of
 * errors, whether it imports or requires them. Bundlers get modules of their own, since CommonJS
 * would bring a browser a second copy of what it imports.
 */
export default defineConfig([
  {
    input,
    external,
    output: { ...fileNames("cjs"), format: "cjs", cleanDir: true },
    plugins: [
      {
        name: "import",
        generateBundle(_, bundle) {
          for (const chunk of Object.values(bundle)) {
            if (chunk.type !== "chunk" || !chunk.isEntry) continue;
            const source = `export { ${chunk.exports.join(", ")} } from "../${chunk.fileName}";\n`;
            this.emitFile({ type: "asset", fileName: `import/${chunk.name}.js`, source });
          }
        },
      },
    ],
  },
  { input, external, output: { ...fileNames("esm"), format: "esm" } },
]);
