import { closeSync, fsyncSync, mkdirSync, openSync, statSync } from "node:fs";
import { dirname } from "node:path";

/**
 * Makes a folder that survives a loss of power: each new entry is synced in its parent. Node.js
 * itself never ends if the parent was deleted under it.
 */
export function makeFolder(folder: string): void {
  const parent = dirname(folder);
  if (parent === folder || statSync(folder, { throwIfNoEntry: false })?.isDirectory()) return;
  makeFolder(parent);
  try {
    mkdirSync(folder, { mode: 0o700 });
  } catch (error) {
    const entry = statSync(folder, { throwIfNoEntry: false });
    if (entry === undefined) throw error;
    // Another process may have made it.
    if (!entry.isDirectory()) throw new Error(`${folder} is not a folder`, { cause: error });
  }
  syncFolder(parent);
}

/** Makes the entries of a folder survive a loss of power. */
export function syncFolder(folder: string): void {
  const descriptor = openSync(folder, "r");
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
