import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "./folder.ts";

/** A certificate and its key, in PEM. */
interface ClientCertificate {
  readonly cert: string;
  readonly key: string;
}

/** An authority that signs what a careful one would not. It needs `openssl`. */
export interface ClientAuthority {
  /** Its own certificate, in PEM. */
  readonly ca: string;
  /** Signs a certificate of a subject such as `/CN=backend`, which ends after so many seconds. */
  sign(subject: string, seconds: number): ClientCertificate;
}

const config = `
[ca]
default_ca = own
[own]
database = index
serial = serial
new_certs_dir = .
certificate = ca.crt
private_key = ca.key
default_md = sha256
policy = anything
unique_subject = no
copy_extensions = copy
[anything]
commonName = optional
[req]
distinguished_name = none
req_extensions = names
[names]
subjectAltName = DNS:backend.example
[none]
`;

/** Makes an authority in a folder of the test's own. */
export function createClientAuthority(): ClientAuthority {
  const folder = temporaryFolder();
  const run = (command: string, ...more: string[]) =>
    execFileSync("openssl", [...command.split(" "), ...more], { cwd: folder, stdio: "pipe" });
  const write = (name: string, text: string) => writeFileSync(join(folder, name), text);
  const read = (name: string) => readFileSync(join(folder, name), "utf8");
  const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  write("config", config);
  write("index", "");
  write("serial", "01\n");
  run("req -x509 -subj /CN=Clients -days 1 -keyout ca.key -out ca.crt", ...newKey);
  return {
    ca: read("ca.crt"),
    sign(subject, seconds) {
      run("req -new -config config -keyout key -out request -subj", subject, ...newKey);
      const end = new Date(Date.now() + seconds * 1_000).toISOString();
      const time = `${end.replaceAll(/[-:T]|\..*/g, "")}Z`;
      run("ca -batch -notext -config config -in request -out cert -enddate", time);
      return { cert: read("cert"), key: read("key") };
    },
  };
}
