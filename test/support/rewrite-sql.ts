/**
 * Loaded into a service before it starts (`node --import`): replaces texts in its SQL, by the
 * pairs in REWRITE_SQL (JSON).
 */
import { DatabaseSync } from "node:sqlite";

const pairs: [string, string][] = Object.entries(JSON.parse(process.env.REWRITE_SQL ?? "{}"));

function rewrite(sql: string): string {
  return pairs.reduce((text, [from, to]) => text.replace(from, to), sql);
}

const { exec, prepare } = DatabaseSync.prototype;
DatabaseSync.prototype.exec = function (sql) {
  return exec.call(this, rewrite(sql));
};
DatabaseSync.prototype.prepare = function (sql, ...options) {
  return prepare.call(this, rewrite(sql), ...options);
};
