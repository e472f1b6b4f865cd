/** Backups and restores as the pages have them, each block followed twice in a row. */
import { readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Document, WithId } from "mongodb";
import { describe, expect, it } from "vitest";
import { nameFrom } from "../support/backup-programs.ts";
import { root } from "../support/clone.ts";
import { copy, idOf, idsIn } from "../support/copying.ts";
import { createMachine } from "../support/machine.ts";
import { createManifestReader } from "../support/manifest-reader.ts";
import { pages, readBlocks } from "../support/markdown.ts";
import { connectTo, describeWithMongo } from "../support/mongodb.ts";
import { listAll } from "../support/pages.ts";
import { aCreate } from "../support/records.ts";
import { grpcClient } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const blocks = pages
  .flatMap((page) => readBlocks(page))
  .filter(({ test }) => test === "test/gate/backups.test.ts");

/** The block with this text, as a shell takes it. */
function commandsWith(part: string): string {
  const [block, ...others] = blocks.filter(({ text }) => text.includes(part));
  if (block === undefined || others.length > 0) throw new Error(`not one block has ${part}`);
  if (block.language !== "crontab") return block.text;
  // As cron reads it: five fields for the time, and one for the user.
  const [, command = ""] = /^(?:[\d*]+ +){5}root +(.*)$/.exec(block.text) ?? [];
  return command.replaceAll("\\%", "%");
}

/** The blocks for each platform, and where its stand-in has the records. */
const platforms = {
  systemd: {
    service: "investor-records.service",
    data: "var/lib/investor-records",
    backups: "var/backups/investor-records",
    start: "systemctl start investor-records",
    install: commandsWith("systemctl edit"),
    backup: commandsWith("systemctl start investor-records-backup.service"),
    restore: commandsWith("systemctl stop"),
  },
  containers: {
    service: "investor-records",
    data: "volumes/investors",
    backups: "volumes/backups",
    start: "docker start investor-records",
    install: commandsWith("-t investor-records . &&\n  docker run"),
    backup: commandsWith("root docker exec"),
    restore: commandsWith("restore.js /backups &&"),
  },
  Kubernetes: {
    service: "investor-records-0",
    data: "volumes/data-investor-records-0",
    backups: "volumes/investor-records-backups",
    start: "kubectl scale statefulset investor-records --replicas=1",
    install: "kubectl scale statefulset investor-records --replicas=1",
    backup: commandsWith("--from=cronjob/investor-records-backup"),
    restore: commandsWith("--from=cronjob/investor-records-restore"),
  },
};

const upgrade = commandsWith("docker rm investor-records");
const dump = commandsWith("mongodump ");
const restoreDump = commandsWith("mongorestore ");

describe("the commands of the pages, each followed twice, lose no record", () => {
  const read = createManifestReader();

  for (const [name, platform] of Object.entries(platforms)) {
    const { service, data, backups, install, start, backup, restore } = platform;
    it(`with ${name}`, name === "Kubernetes" ? needs("Go") : {}, async () => {
      const overlay = join(root, "deploy/kubernetes/sqlite");
      const machine = createMachine(name === "Kubernetes" ? read("kubernetes", overlay) : []);
      const { folder } = machine;
      const createThree = async () => {
        const client = grpcClient(machine.service(service));
        const records = await Promise.all([1, 2, 3].map(() => client.createInvestor(aCreate())));
        return records.map(idOf).toSorted();
      };
      const listIds = async () => (await listAll(grpcClient(machine.service(service)))).map(idOf);
      await machine.run(install);
      if (name === "containers")
        await expect(machine.run(install)).rejects.toThrow("already in use");
      else await machine.run(install);
      const saved = await createThree();
      for (let run = 0; run < 2; run++) await machine.run(backup);

      const later: string[][] = [];
      for (let run = 0; run < 2; run++) {
        later.push(await createThree());
        await machine.run(restore);
        expect(await listIds()).toEqual(saved);
      }
      const moved = readdirSync(join(folder, data)).filter((each) => each.endsWith("Z"));
      const left = moved.toSorted().map((each) => idsIn(`${folder}/${data}/${each}/investors.db`));
      expect(left).toEqual(later.map((ids) => [...saved, ...ids]));

      // What fails leaves the service stopped, with its records where they were.
      const latest = await createThree();
      const damaged = join(folder, backups, nameFrom(0));
      writeFileSync(damaged, "not SQLite".repeat(1_000));
      for (let run = 0; run < 2; run++)
        await expect(machine.run(restore)).rejects.toThrow("nothing was changed");
      expect(() => machine.service(service)).toThrow("does not run");
      rmSync(damaged);
      await machine.run(start);
      const all = [...saved, ...latest];
      expect(await listIds()).toEqual(all);

      if (name !== "Kubernetes") {
        const file = join(folder, "var/lib/prometheus/node-exporter/investor-records.prom");
        const [, written] =
          /^investor_records_backup_timestamp_seconds (\d+)\n$/.exec(readFileSync(file, "utf8")) ??
          [];
        expect(Math.abs(Number(written) - Date.now() / 1_000)).toBeLessThan(3_600);
      }
      if (name !== "containers") return;
      await machine.run(upgrade);
      await expect(machine.run(upgrade)).rejects.toThrow("no such container");
      await machine.run(install);
      expect(await listIds()).toEqual(all);
    });
  }

  describeWithMongo("on a set", "set of one", (mongo) => {
    it("with mongodump and mongorestore", needs("mongodump"), async () => {
      const { clone, run } = createMachine();
      const url = mongo.url();
      writeFileSync(join(clone, "mongodb.yaml"), `uri: ${url}\n`);
      const investors = join(clone, "examples/investors.ndjson");
      const env = { MONGODB: url };
      expect((await copy([investors, "env:MONGODB"], { folder: clone, env })).code).toBe(0);
      const old = join(clone, "investors-2026-01-01T00:00:00.0Z.gz");
      writeFileSync(old, "");
      utimesSync(old, 0, 0);
      for (let count = 1; count <= 2; count++) {
        await run(dump);
        const made = readdirSync(clone).filter((each) => each.endsWith(".gz"));
        expect(made).toEqual(Array(count).fill(expect.stringMatching(/^investors-.*\.gz$/)));
      }
      const collection = (await connectTo(url)).db().collection("investors");
      const before = await collection.find().sort({ _id: 1 }).toArray();
      expect(before).toHaveLength(20);
      const [first, second] = before as [WithId<Document>, WithId<Document>];
      await collection.deleteOne(first);
      await collection.updateOne(second, { $set: { city: "Newer" } });
      for (let count = 0; count < 2; count++) {
        await run(restoreDump);
        expect(await collection.find().sort({ _id: 1 }).toArray()).toEqual(
          before.map((each) => (each === second ? { ...each, city: "Newer" } : each)),
        );
      }
    });
  });

  it("are all those that name this test", () => {
    const followed = Object.values(platforms).flatMap((each) => [
      each.install,
      each.backup,
      each.restore,
    ]);
    const all = [...followed, upgrade, dump, restoreDump];
    for (const { text, language } of blocks)
      expect(all, text).toContain(language === "crontab" ? commandsWith(text) : text);
  });
});
