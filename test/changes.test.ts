/**
 * What the service depends on, and what can happen to it while it runs: a table in which no cell is
 * empty. A cell is run here, or names the test that has it, or says why it has no meaning.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { type Address, clientsOf } from "./support/clients.ts";
import { root } from "./support/clone.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask, grpcClient, metric, startService, waitFor } from "./support/service.ts";

const changes = ["gone", "replaced", "expired or refused", "full or slow", "back again"] as const;

type Change = (typeof changes)[number];

/** `FILE: NAME` of the test that has it, `none: WHY` it has no meaning, or a test. */
type Cell = string | { words: string; run(): Promise<void> };

/** Runs it, or looks whether the test is there that does, without what a table of it adds. */
async function check(cell: Cell): Promise<void> {
  if (typeof cell === "object") return cell.run();
  const [, file, name] = /^(\S+): (.+)$/.exec(cell) ?? [];
  expect(name, cell).toBeDefined();
  if (file === "none") return;
  expect(readFileSync(join(root, `test/${file}.test.ts`), "utf8")).toContain(JSON.stringify(name));
}

/** What a list by a token gets: a status of HTTP. */
async function statusWith(ports: Address, token: string): Promise<number> {
  const headers = { authorization: `Bearer ${token}` };
  return (await ask(ports, "/v1/investors", { headers })).status;
}

const history =
  "gate/faults/mongodb-history: lose nothing that was acknowledged, and have nothing twice, through all faults";
const replacements = "store/sqlite: ends with the first ping after its file was %s";
const movedFile =
  "damage: a service whose file was moved ends, and does not touch the file that has its path now";
const quota =
  "store/sqlite: refuses creates beyond a quota, stays ready, and takes them again once there is room";
const setRefuses =
  "gate/refused-creates: a set: quota, disk, writes that are blocked, validator, role";
const tablesChange = "gate/refused-creates: triggers, a table that is renamed, one that is dropped";
const mongoDown =
  "mongodb-faults: that is down at the start makes the service unready until it is up";
const otherUser = "gate/rolling-restart: loses no call";
const wrongUser = "mongodb-unreachable: user, password, authSource";
const readAtStart = "none: it is read at the start";
const keptFiles =
  "renewal: a certificate that comes before its key is not used, which is said once, until that comes";
const renewedFiles =
  "renewal: certificates and tokens are read again when their links lead elsewhere, without a signal";
const fifo = "end: as a certificate that nobody writes does not hold up the end of a start";
const endedCertificate =
  "tls: retires its connections when half of its last minute is left, and is refused once expired";
const otherCa =
  "tls: of a CA that a reload takes out retires its connections at once, which end ten seconds later";
const unreadLog = "log: does not hold up the service, which counts and says what is lost";
const newKeys = "oidc: are fetched again for a token that names another, at most once a second";
const descriptors =
  "bounds: are no more than file descriptors allow: less is refused at the start, and an idle one makes room";
const clockSet = "gate/clock: %s, and then right again, loses, cuts and locks out nothing";
const noName = "mongodb-unreachable: host, port, replicaSet";

const table: Record<string, Record<Change, Cell>> = {
  "the database file": {
    gone: replacements,
    replaced: movedFile,
    "expired or refused": "damage: are refused if they cannot be written",
    "full or slow": "end: does not hold up the end beyond the drain timeout",
    "back again":
      "store/sqlite: refuses a WAL whose file was moved, and has its records once that is back",
  },
  "its WAL": {
    gone: replacements,
    replaced: "gate/faults/file-and-wal: are opened with all that is in them, or refused",
    "expired or refused": "crash: and tells a caller with a request id to repeat",
    "full or slow": "start: starts beside a reader that stays, warns, and shows the WAL that grows",
    "back again":
      "store/sqlite: brings its WAL into the file before it is open, as far as others who read allow",
  },
  "its folder": {
    gone: replacements,
    replaced: replacements,
    "expired or refused": "start: says that it may not write its file%s, after %s",
    "full or slow": "store/sqlite: says at the start that the disk is full",
    "back again": {
      words: "has its records",
      async run() {
        const service = await startService();
        const { id } = await grpcClient(service).createInvestor(aCreate());
        const data = join(service.folder, "data");
        renameSync(data, `${data}.moved`);
        expect(await service.exited).toBe(3);
        renameSync(`${data}.moved`, data);
        const next = await startService({}, service.folder);
        expect((await grpcClient(next).getInvestor({ id })).id).toBe(id);
      },
    },
  },
  "its schema": {
    gone: tablesChange,
    replaced:
      "store/sqlite: serves a table to which columns were added that need no value, also while it runs",
    "expired or refused": tablesChange,
    "full or slow":
      "store/sqlite: waits for another process that writes, and says so if it waits too long",
    "back again": "store/sqlite: takes a file whose table was renamed and renamed back",
  },
  "rights on it": {
    gone: "start: says that it may not write its file%s, after %s",
    replaced: "none: SQLite keeps its files open, whose rights then do not count",
    "expired or refused": "gate/refused-creates: a WAL that may no longer be written",
    "full or slow": "none: rights are there or not",
    "back again": "none: a start is refused until they are right, and has changed nothing",
  },
  "disk space": {
    gone: "store/sqlite: says at the start that the disk is full",
    replaced: "none: another disk is another file",
    "expired or refused": quota,
    "full or slow": quota,
    "back again": quota,
  },
  "MongoDB's primary": {
    gone: history,
    replaced: history,
    "expired or refused": "mongodb-unreachable: its name, a secondary alone, no primary",
    "full or slow":
      "gate/faults/frozen-primary: go on soon after a bare driver could, if the primary freezes",
    "back again": mongoDown,
  },
  "MongoDB's members": {
    gone: "store/mongodb: says that a miss or a page cannot be proved, never that nothing is there",
    replaced: history,
    "expired or refused": "mongodb-unreachable: a set that is not initiated",
    "full or slow": "mongodb-faults: whose reply drips holds up no other get beyond its deadline",
    "back again": mongoDown,
  },
  "MongoDB's user": {
    gone: wrongUser,
    replaced: otherUser,
    "expired or refused": setRefuses,
    "full or slow": "none: a user is there or not",
    "back again": "none: a restart opens new connections",
  },
  "its password": {
    gone: wrongUser,
    replaced: otherUser,
    "expired or refused": wrongUser,
    "full or slow": "database-url-file: is read once, at the start, where it can be a FIFO",
    "back again": readAtStart,
  },
  "its certificates": {
    gone: "mongodb-unreachable: tls, tlsCAFile",
    replaced: readAtStart,
    "expired or refused": "mongodb-unreachable: tls, tlsCAFile",
    "full or slow": "none: the driver reads them when it connects, within its timeout",
    "back again": readAtStart,
  },
  "its name in the DNS": {
    gone: noName,
    replaced: "none: connections that are open stay, and the driver looks up each new one",
    "expired or refused": noName,
    "full or slow": "end: does not hold up the end of %s",
    "back again": mongoDown,
  },
  "its collection": {
    gone: setRefuses,
    replaced: setRefuses,
    "expired or refused": setRefuses,
    "full or slow": setRefuses,
    "back again": setRefuses,
  },
  "the tokens file": {
    gone: {
      words: "is said, its tokens stay, and the next ones are taken",
      async run() {
        const file = temporaryFile("backend token-of-the-backend\n");
        const { reload, ...server } = await startInProcess({ "--auth-tokens-file": file });
        rmSync(file);
        const { errors } = await reload(true);
        expect(errors.map(({ message }) => message)).toEqual([
          `--auth-tokens-file ${file} cannot be read (ENOENT)`,
        ]);
        expect(await statusWith(server, "token-of-the-backend")).toBe(200);
        writeFileSync(file, "backend token-that-comes-next\n", { mode: 0o600 });
        expect(await reload(true)).toEqual({ errors: [], reloaded: ["tokens"] });
        expect(await statusWith(server, "token-that-comes-next")).toBe(200);
        expect(await statusWith(server, "token-of-the-backend")).toBe(401);
      },
    },
    replaced: renewedFiles,
    "expired or refused":
      "renewal: a tokens file that has become %s is refused once, and at each SIGHUP",
    "full or slow": "end: of tokens is read once, holds up neither other files nor the end",
    "back again": "authentication: are replaced by what their file holds when it is read again",
  },
  "the server's certificate": {
    gone: keptFiles,
    replaced:
      "tls: is renewed without dropping a call, as tokens are, whatever their files hold in between",
    "expired or refused": "renewal: a certificate that has expired is used, with a warning",
    "full or slow": fifo,
    "back again": keptFiles,
  },
  "a client's certificate": {
    gone: "tls: tells who calls; without a trusted one, only health checks reply",
    replaced:
      "gate/client-certificates: a client in Go by %s whose certificate is renewed %s goes on without a failed call",
    "expired or refused": endedCertificate,
    "full or slow": "none: it comes with the handshake, which has ten seconds",
    "back again":
      "tls: is refused before it is valid, and taken then, on connections that are open",
  },
  "the client CA": {
    gone: {
      words: "is said, and clients that it has signed for stay, until it is back or another comes",
      async run() {
        const [authority, clients] = [await createAuthority(), await createAuthority("Clients")];
        const file = temporaryFile(clients.ca);
        const { reload, ...server } = await startInProcess({
          ...(await writeServerFlags(temporaryFolder(), authority)),
          "--tls-client-ca": file,
        });
        const tls = { ca: authority.ca, ...(await clients.sign("backend.example")) };
        rmSync(file);
        const { errors } = await reload(true);
        expect(errors.map(({ message }) => message)).toEqual([
          `--tls-client-ca ${file} cannot be read (ENOENT)`,
        ]);
        await clientsOf(server, { tls }).gRPC.listInvestors({});
        writeFileSync(file, clients.ca);
        expect(await reload(true)).toEqual({ errors: [], reloaded: [] });
        await clientsOf(server, { tls }).gRPC.listInvestors({});
      },
    },
    replaced: otherCa,
    "expired or refused": "tls: does not start with %s %s, which %s",
    "full or slow": fifo,
    "back again": otherCa,
  },
  "the issuer": {
    gone: "oidc: serve for a day while it is down, and not longer",
    replaced: "oidc: are not taken if that would be wrong: %s",
    "expired or refused":
      "oidc: is the credential of its subject until it expires, also if it was just verified",
    "full or slow": "authentication: hold no slot while their issuer is slow",
    "back again":
      "authentication: are taken as soon as their issuer, which was down at the start, is up",
  },
  "its keys": {
    gone: "oidc: are fetched every ten minutes, and a withdrawn one ends within eleven, with the clock set back by %i",
    replaced: "oidc: are found where the metadata says now",
    "expired or refused": "oidc: that are too weak are named in the log",
    "full or slow":
      "oidc: are waited for by 256 tokens that name others, and by one after a failure; others go on",
    "back again": newKeys,
  },
  "the reader of the log": {
    gone: {
      words: "costs lines, which are counted, and no call",
      async run() {
        const service = await startService({ LOG_LEVEL: "debug" });
        service.child.stderr?.destroy();
        const client = grpcClient(service);
        await waitFor(async () => {
          await Promise.all(Array.from({ length: 100 }, () => client.createInvestor(aCreate())));
          return (await metric(service, "investor_records_log_lines_dropped_total")) > 0;
        });
        expect((await ask(service, "/readyz")).status).toBe(200);
      },
    },
    replaced: "none: the service writes to the descriptor that it was started with",
    "expired or refused": unreadLog,
    "full or slow": unreadLog,
    "back again": unreadLog,
  },
  "the clock, an hour on": {
    gone: "none: a machine has one",
    replaced: clockSet,
    "expired or refused": clockSet,
    "full or slow": clockSet,
    "back again": clockSet,
  },
  "the clock, an hour back": {
    gone: "none: a machine has one",
    replaced: clockSet,
    "expired or refused": "oidc: that are new are taken at once after the clock was set back",
    "full or slow": clockSet,
    "back again": clockSet,
  },
  "file descriptors": {
    gone: descriptors,
    replaced: "none: they are numbers",
    "expired or refused": descriptors,
    "full or slow": descriptors,
    "back again": descriptors,
  },
};

const wordsOf = (cell: Cell) => (typeof cell === "object" ? cell.words : cell);

describe.each(Object.entries(table))("%s", (_, row) => {
  it.each(changes.map((change) => [change, wordsOf(row[change]), row[change]] as const))(
    "%s: %s",
    (_change, _words, cell) => check(cell),
  );
});
