/**
 * What the service depends on, and what can happen to it while it runs: a table in which no cell is
 * empty. A cell is run here, or names the test that has it, or says why it has no meaning.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createAuthority, writeServerFlags } from "./support/certificates.ts";
import { clientsOf, type Ports } from "./support/clients.ts";
import { root } from "./support/clone.ts";
import { temporaryFile, temporaryFolder } from "./support/folder.ts";
import { aCreate } from "./support/records.ts";
import { startInProcess } from "./support/server.ts";
import { ask, grpcClient, metric, startService, waitFor } from "./support/service.ts";

const changes = ["gone", "replaced", "expired or refused", "full or slow", "back again"] as const;

type Change = (typeof changes)[number];

interface Cell {
  /** Runs it, or looks whether the test is there that does. */
  check(): void | Promise<void>;
  /** The test that has it, or why it has no meaning. */
  words: string;
}

/** A test, by its file in test/ and its name, without what a table of it adds. */
function testedIn(file: string, name: string): Cell {
  return {
    words: `is in ${file}: ${name}`,
    check() {
      const text = readFileSync(join(root, "test", file), "utf8");
      expect(text).toContain(JSON.stringify(name));
    },
  };
}

function none(words: string): Cell {
  return { words: `has no meaning: ${words}`, check: () => expect(words).not.toBe("") };
}

function run(words: string, check: Cell["check"]): Cell {
  return { words, check };
}

/** What a list by a token gets: a status of HTTP. */
async function statusWith(ports: Ports, token: string): Promise<number> {
  const headers = { authorization: `Bearer ${token}` };
  return (await ask(ports, "/v1/investors", { headers })).status;
}

const sqlite = "store/sqlite.test.ts";
const refused = "gate/refused-creates.test.ts";
const history = testedIn(
  "gate/faults/mongodb-history.test.ts",
  "lose nothing that was acknowledged, and have nothing twice, through all faults",
);
const replacements = testedIn(sqlite, "ends with the first ping after its file was %s");
const movedFile = testedIn(
  "damage.test.ts",
  "a service whose file was moved ends, and does not touch the file that has its path now",
);
const quota = testedIn(
  sqlite,
  "refuses creates beyond a quota, stays ready, and takes them again once there is room",
);
const setRefuses = testedIn(
  refused,
  "a set: quota, disk, writes that are blocked, view, validator, role",
);
const tablesChange = testedIn(refused, "triggers, a table that is renamed, one that is dropped");
const mongoDown = testedIn(
  "mongodb-faults.test.ts",
  "that is down at the start makes the service unready until it is up",
);
const password = testedIn(
  "gate/mongodb-password.test.ts",
  "is changed under load without a failed call, once the file has the new one",
);
const droppedUser = testedIn(
  "gate/mongodb-password.test.ts",
  "and its user, dropped and made again, are said, and over when they are over",
);
const mongoCertificates = testedIn(
  "gate/mongodb-certificates.test.ts",
  "are read again on SIGHUP, no call is lost, and the old ones stay until new ones can be used",
);
const keptFiles = testedIn(
  "renewal.test.ts",
  "a certificate that comes before its key is not used, which is said once, until that comes",
);
const renewedFiles = testedIn(
  "renewal.test.ts",
  "certificates and tokens are read again when their links lead elsewhere, without a signal",
);
const fifo = testedIn(
  "end.test.ts",
  "as a certificate that nobody writes does not hold up the end of a start",
);
const endedCertificate = testedIn(
  "tls.test.ts",
  "retires its connections a minute before it expires, and closes them then",
);
const otherCa = testedIn(
  "tls.test.ts",
  "of a CA that a reload takes out retires its connections at once, and is refused soon",
);
const unreadLog = testedIn(
  "log.test.ts",
  "does not hold up the service, which counts and says what is lost",
);
const newKeys = testedIn(
  "oidc.test.ts",
  "are fetched again for a token that names another, at most once a second",
);
const descriptors = testedIn(
  "bounds.test.ts",
  "are no more than file descriptors allow, and an idle one makes room",
);
const clockSet = testedIn(
  "gate/clock.test.ts",
  "%s, and then right again, loses, cuts and locks out nothing",
);
const noName = testedIn("mongodb-unreachable.test.ts", "host, port, replicaSet");

const table: Record<string, Record<Change, Cell>> = {
  "the database file": {
    gone: replacements,
    replaced: movedFile,
    "expired or refused": testedIn("damage.test.ts", "are refused if they cannot be written"),
    "full or slow": testedIn("end.test.ts", "does not hold up the end beyond the drain timeout"),
    "back again": testedIn(
      sqlite,
      "refuses a WAL whose file was moved, and has its records once that is back",
    ),
  },
  "its WAL": {
    gone: replacements,
    replaced: testedIn(
      "gate/faults/file-and-wal.test.ts",
      "are opened with all that is in them, or refused",
    ),
    "expired or refused": testedIn(
      "crash.test.ts",
      "and tells a caller with a request id to repeat",
    ),
    "full or slow": testedIn(
      "start.test.ts",
      "starts beside a reader that stays, warns, and shows the WAL that grows",
    ),
    "back again": testedIn(
      sqlite,
      "brings its WAL into the file before it is open, as far as others who read allow",
    ),
  },
  "its folder": {
    gone: replacements,
    replaced: replacements,
    "expired or refused": testedIn(
      "start.test.ts",
      "says that it may not write its file%s, after %s",
    ),
    "full or slow": testedIn("start.test.ts", "says that its disk has no inodes beyond %d"),
    "back again": run("has its records", async () => {
      const service = await startService();
      const { id } = await grpcClient(service).createInvestor(aCreate());
      const data = join(service.folder, "data");
      renameSync(data, `${data}.moved`);
      expect(await service.exited).toBe(3);
      renameSync(`${data}.moved`, data);
      const next = await startService({}, service.folder);
      expect((await grpcClient(next).getInvestor({ id })).id).toBe(id);
    }),
  },
  "its schema": {
    gone: tablesChange,
    replaced: testedIn(
      sqlite,
      "serves a table to which columns were added that need no value, also while it runs",
    ),
    "expired or refused": tablesChange,
    "full or slow": testedIn(
      sqlite,
      "waits for another process that writes, and says so if it waits too long",
    ),
    "back again": testedIn(sqlite, "takes a file whose table was renamed and renamed back"),
  },
  "rights on it": {
    gone: testedIn("start.test.ts", "says that it may not write its file%s, after %s"),
    replaced: none("SQLite keeps its files open, whose rights then do not count"),
    "expired or refused": testedIn(refused, "a WAL that may no longer be written"),
    "full or slow": none("rights are there or not"),
    "back again": none("a start is refused until they are right, and has changed nothing"),
  },
  "disk space": {
    gone: testedIn(sqlite, "says at the start that the disk is full"),
    replaced: none("another disk is another file"),
    "expired or refused": quota,
    "full or slow": quota,
    "back again": quota,
  },
  "MongoDB's primary": {
    gone: history,
    replaced: history,
    "expired or refused": testedIn(
      "mongodb-unreachable.test.ts",
      "its name, a secondary alone, no primary",
    ),
    "full or slow": testedIn(
      "gate/faults/frozen-primary.test.ts",
      "go on soon after a bare driver could, if the primary freezes",
    ),
    "back again": mongoDown,
  },
  "MongoDB's members": {
    gone: testedIn(
      "store/mongodb.test.ts",
      "says that a miss or a page cannot be proved, never that nothing is there",
    ),
    replaced: history,
    "expired or refused": testedIn("mongodb-unreachable.test.ts", "a set that is not initiated"),
    "full or slow": testedIn(
      "mongodb-faults.test.ts",
      "whose reply drips holds up no other get beyond its deadline",
    ),
    "back again": mongoDown,
  },
  "MongoDB's user": {
    gone: droppedUser,
    replaced: password,
    "expired or refused": setRefuses,
    "full or slow": none("a user is there or not"),
    "back again": droppedUser,
  },
  "its password": {
    gone: testedIn("mongodb-unreachable.test.ts", "user, password, authSource"),
    replaced: password,
    "expired or refused": password,
    "full or slow": testedIn(
      "database-url-file.test.ts",
      "is read at the start only if it is a FIFO",
    ),
    "back again": password,
  },
  "its certificates": {
    gone: mongoCertificates,
    replaced: mongoCertificates,
    "expired or refused": testedIn("mongodb-unreachable.test.ts", "tls, tlsCAFile"),
    "full or slow": none("the driver reads them when it connects, within its timeout"),
    "back again": mongoCertificates,
  },
  "its name in the DNS": {
    gone: noName,
    replaced: none("connections that are open stay, and the driver looks up each new one"),
    "expired or refused": noName,
    "full or slow": testedIn("end.test.ts", "does not hold up the end of %s"),
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
    gone: run("is said, its tokens stay, and the next ones are taken", async () => {
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
    }),
    replaced: renewedFiles,
    "expired or refused": testedIn(
      "renewal.test.ts",
      "a tokens file that has become %s is refused once, and at each SIGHUP",
    ),
    "full or slow": testedIn(
      "end.test.ts",
      "of tokens is read once, holds up neither other files nor the end",
    ),
    "back again": testedIn(
      "authentication.test.ts",
      "are replaced by what their file holds when it is read again",
    ),
  },
  "the server's certificate": {
    gone: keptFiles,
    replaced: testedIn("tls.test.ts", "is renewed without dropping a call"),
    "expired or refused": testedIn(
      "renewal.test.ts",
      "a certificate that has expired is used, with a warning",
    ),
    "full or slow": fifo,
    "back again": keptFiles,
  },
  "a client's certificate": {
    gone: testedIn(
      "tls.test.ts",
      "tells who calls; without a trusted one, only health checks reply",
    ),
    replaced: testedIn(
      "gate/client-certificates.test.ts",
      "a client in Go by %s whose certificate is renewed %s goes on without a failed call",
    ),
    "expired or refused": endedCertificate,
    "full or slow": none("it comes with the handshake, which has ten seconds"),
    "back again": testedIn(
      "tls.test.ts",
      "is refused before it is valid, and taken then, on connections that are open",
    ),
  },
  "the client CA": {
    gone: run("is said, and clients that it has signed for stay, until another comes", async () => {
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
      expect(await reload(true)).toEqual({ errors: [], reloaded: ["certificates"] });
      await clientsOf(server, { tls }).gRPC.listInvestors({});
    }),
    replaced: otherCa,
    "expired or refused": testedIn("tls.test.ts", "does not start with %s %s, which %s"),
    "full or slow": fifo,
    "back again": otherCa,
  },
  "the issuer": {
    gone: testedIn("oidc.test.ts", "serve for a day while it is down, and not longer"),
    replaced: testedIn("oidc.test.ts", "are not taken if that would be wrong: %s"),
    "expired or refused": testedIn(
      "oidc.test.ts",
      "is the credential of its subject until it expires, also if it was just verified",
    ),
    "full or slow": testedIn(
      "authentication.test.ts",
      "hold no slot while their issuer is slow, and are checked 256 at once",
    ),
    "back again": testedIn("oidc.test.ts", "are asked for at most once a second while that fails"),
  },
  "its keys": {
    gone: testedIn(
      "oidc.test.ts",
      "are fetched again after ten minutes, so that a withdrawn key is no longer accepted, if the clock is set back by %i",
    ),
    replaced: newKeys,
    "expired or refused": testedIn("oidc.test.ts", "that are too weak are named in the log"),
    "full or slow": testedIn("oidc.test.ts", "are not taken from %s"),
    "back again": newKeys,
  },
  "the reader of the log": {
    gone: run("costs lines, which are counted, and no call", async () => {
      const service = await startService({ LOG_LEVEL: "debug" });
      service.child.stderr?.destroy();
      const client = grpcClient(service);
      await waitFor(async () => {
        await Promise.all(Array.from({ length: 100 }, () => client.createInvestor(aCreate())));
        return (await metric(service, "investor_records_log_lines_dropped_total")) > 0;
      });
      expect((await ask(service, "/readyz")).status).toBe(200);
    }),
    replaced: none("the service writes to the descriptor that it was started with"),
    "expired or refused": unreadLog,
    "full or slow": unreadLog,
    "back again": unreadLog,
  },
  "the clock, an hour on": {
    gone: none("a machine has one"),
    replaced: clockSet,
    "expired or refused": clockSet,
    "full or slow": clockSet,
    "back again": clockSet,
  },
  "the clock, an hour back": {
    gone: none("a machine has one"),
    replaced: clockSet,
    "expired or refused": testedIn(
      "oidc.test.ts",
      "that are new are taken at once after the clock was set back",
    ),
    "full or slow": clockSet,
    "back again": clockSet,
  },
  "file descriptors": {
    gone: descriptors,
    replaced: none("they are numbers"),
    "expired or refused": descriptors,
    "full or slow": descriptors,
    "back again": descriptors,
  },
};

describe.each(Object.entries(table))("%s", (_, row) => {
  it.each(changes.map((change) => [change, row[change].words, row[change].check] as const))(
    "%s: %s",
    (_change, _words, check) => check(),
  );
});
