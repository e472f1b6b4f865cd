/**
 * Loaded into a service before it starts (`node --import`): breaks the promise that MUTANT
 * names, for the tests that have to notice it.
 */
import crypto from "node:crypto";
import { syncBuiltinESMExports } from "node:module";
import { DatabaseSync } from "node:sqlite";
import { Db, type Document, MongoServerError } from "mongodb";

/** How many commits of SQLite are right, to each that is not. */
const rightCommits = 20;

const full = Object.assign(new Error("database or disk is full"), { errcode: 13 });

/** Does something else instead of some of the commits. */
function replaceCommits(replace: (commit: () => void, rollback: () => void) => void): void {
  const { exec } = DatabaseSync.prototype;
  let commits = 0;
  DatabaseSync.prototype.exec = function (sql) {
    const isRight = sql !== "COMMIT" || commits++ % (rightCommits + 1) !== rightCommits;
    if (isRight) exec.call(this, sql);
    else
      replace(
        () => exec.call(this, "COMMIT"),
        () => exec.call(this, "ROLLBACK"),
      );
  };
}

/** Does something else instead of a command of MongoDB. */
function replaceCommand(
  name: string,
  replace: (command: Document, run: (command: Document) => Promise<Document>) => Promise<Document>,
): void {
  const { command } = Db.prototype;
  Db.prototype.command = function (wanted, options) {
    const run = (changed: Document) => command.call(this, changed, options);
    return name in wanted ? replace(wanted, run) : run(wanted);
  };
}

const mutants: Record<string, () => void> = {
  "an acknowledged rollback": () => replaceCommits((_, rollback) => rollback()),
  "a commit told as failed": () =>
    replaceCommits((commit) => {
      commit();
      throw full;
    }),
  "no replay": () => {
    const { hash, randomBytes } = crypto;
    crypto.hash = ((...args: Parameters<typeof hash>) =>
      args[0] === "sha256" ? randomBytes(32) : hash(...args)) as typeof hash;
    syncBuiltinESMExports();
  },
  "an acknowledgement without a majority": () =>
    replaceCommand("insert", (command, run) => run({ ...command, writeConcern: { w: 1 } })),
  "an open insert told as not written": () =>
    replaceCommand("insert", (command, run) =>
      run(command).catch((error) => {
        // "Not primary", which the primary says before it writes anything.
        throw new MongoServerError({ message: error.message, code: 10_107 });
      }),
    ),
  "reads without the fence": () =>
    replaceCommand("find", (command, run) =>
      run({ ...command, readConcern: { level: "majority" } }),
    ),
};

mutants[process.env.MUTANT ?? ""]?.();
