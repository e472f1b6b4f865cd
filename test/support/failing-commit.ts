/**
 * Loaded into a service before it starts (`node --import`): the commit of its third
 * batch fails in the way that FAILING_COMMIT names.
 */
import { DatabaseSync } from "node:sqlite";
import { isMainThread } from "node:worker_threads";

if (!isMainThread) {
  const exec = DatabaseSync.prototype.exec;
  // The first one makes the table.
  let commits = -1;
  DatabaseSync.prototype.exec = function (sql) {
    if (sql === "COMMIT") {
      commits += 1;
      if (commits === 3 && process.env.FAILING_COMMIT === "thread ends") process.exit(0);
      if (commits === 3) throw Object.assign(new Error("disk I/O error"), { errcode: 1034 });
    }
    return exec.call(this, sql);
  };
}
