/**
 * Loaded into a service before it starts (`node --import`): replaces texts in its SQL, by the
 * pairs in REWRITE_SQL (JSON). The pair "writeSync" lets the thread that writes not write the
 * log again.
 */
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { DatabaseSync } from "node:sqlite";
import { isMainThread } from "node:worker_threads";

const pairs: [string, string][] = Object.entries(JSON.parse(process.env.REWRITE_SQL ?? "{}"));

function rewrite(sql: string): string {
  return pairs.reduce((text, [from, to]) => text.replace(from, to), sql);
}

if (!isMainThread && pairs.some(([from]) => from === "writeSync")) {
  fs.writeSync = ((_, bytes: Uint8Array) => bytes.length) as typeof fs.writeSync;
  syncBuiltinESMExports();
}

const { exec, prepare } = DatabaseSync.prototype;
DatabaseSync.prototype.exec = function (sql) {
  return exec.call(this, rewrite(sql));
};
DatabaseSync.prototype.prepare = function (sql, ...options) {
  return prepare.call(this, rewrite(sql), ...options);
};
