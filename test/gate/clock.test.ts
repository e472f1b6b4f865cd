/** A clock of the whole process, OpenSSL's and SQLite's too, that is set while it runs. */
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { beforeAll, describe, expect, it } from "vitest";
import { createAuthority, writeServerFiles } from "../support/certificates.ts";
import { clientsOf } from "../support/clients.ts";
import { failureOf } from "../support/errors.ts";
import { sharedFolder, temporaryFile, temporaryFolder } from "../support/folder.ts";
import { startIssuer } from "../support/issuer.ts";
import { aCreate } from "../support/records.ts";
import { lockDatabase, startService, untilWritten, waitFor } from "../support/service.ts";
import { needs } from "../support/tools.ts";

const hour = 3_600;

const invalid = { code: "Unauthenticated", reason: "CREDENTIALS_INVALID" };

describe("a clock that is set while the service runs", needs("cc"), () => {
  const library = join(sharedFolder(), "clock.so");

  beforeAll(() => {
    const input = `
      #include <fcntl.h>
      #include <stdlib.h>
      #include <sys/mman.h>
      #include <sys/syscall.h>
      #include <sys/time.h>
      #include <time.h>
      #include <unistd.h>
      static volatile long *ahead;
      __attribute__((constructor)) static void begin(void) {
        ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, open(getenv("CLOCK"), O_RDONLY), 0);
      }
      int clock_gettime(clockid_t id, struct timespec *now) {
        long status = syscall(SYS_clock_gettime, id, now);
        if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += *ahead;
        return status;
      }
      int gettimeofday(struct timeval *restrict now, void *restrict zone) {
        long status = syscall(SYS_gettimeofday, now, zone);
        now->tv_sec += *ahead;
        return status;
      }
      time_t time(time_t *result) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        if (result) *result = now.tv_sec;
        return now.tv_sec;
      }`;
    execFileSync("cc", ["-shared", "-fPIC", "-x", "c", "-o", library, "-"], { input });
  });

  it.each([
    ["an hour on", hour, { token: false, certificate: true }],
    ["an hour back", -hour, { token: true, certificate: false }],
    ["400 days on", 400 * 24 * hour, { token: false, certificate: false }],
    ["400 days back", -400 * 24 * hour, { token: true, certificate: false }],
  ])("%s, and then right again, loses, cuts and locks out nothing", async (_, seconds, served) => {
    const clock = temporaryFile("");
    /** Sets the clock in place: a file that is cut, even for an instant, ends who has it mapped. */
    const set = (ahead: number) => {
      const bytes = Buffer.alloc(8);
      bytes.writeBigInt64LE(BigInt(ahead));
      writeFileSync(clock, bytes, { flag: "r+" });
    };
    set(0);
    const issuer = await startIssuer();
    const [authority, signer] = [await createAuthority(), await createAuthority("Clients")];
    const service = await startService({
      ...(await writeServerFiles(temporaryFolder(), authority)),
      LD_PRELOAD: library,
      CLOCK: clock,
      TLS_CLIENT_CA: temporaryFile(signer.ca),
      AUTH_TOKENS_FILE: temporaryFile("backend token-of-the-backend\n"),
      OIDC_ISSUER: issuer.url,
      OIDC_AUDIENCE: "investors",
      REQUEST_TIMEOUT: "4s",
      DRAIN_DELAY: "1s",
    });
    const by = (authorization: string) =>
      clientsOf(service, { tls: authority, authorization }).gRPC;
    const tls = { ca: authority.ca, ...(await signer.sign("backend.example")) };
    const token = by("Bearer token-of-the-backend");
    const certificate = clientsOf(service, { tls }).gRPC;
    const sign = (ahead: number) => {
      const now = Math.floor(Date.now() / 1_000) + ahead;
      const scope = "investors:read investors:write";
      return issuer.sign({ iat: now, nbf: now, exp: now + 600, scope });
    };
    const rightToken = `Bearer ${await sign(0)}`;
    const ids: string[] = [];
    const create = async (client: typeof token) => {
      ids.push((await client.createInvestor(aCreate())).id);
    };
    for (const client of [token, certificate, by(rightToken)]) await create(client);

    // Deadlines go by a clock that is never set.
    const unlock = lockDatabase(service);
    const begunAt = performance.now();
    const waiting = failureOf(token.createInvestor(aCreate()));
    await delay(500);
    set(seconds);
    expect((await waiting).reason).toMatch(/OUTCOME_UNKNOWN|DEADLINE_EXCEEDED/);
    expect(performance.now() - begunAt).toBeGreaterThan(3_900);
    unlock();

    await create(token);
    await issuer.rotate();
    await create(by(`Bearer ${await sign(seconds)}`));
    const again = clientsOf(service, { tls }).gRPC;
    for (const [client, isServed] of [
      [by(rightToken), served.token],
      [certificate, served.certificate],
      [again, served.certificate],
    ] as const) {
      const call = client.listInvestors({});
      if (isServed) await call;
      else expect(await failureOf(call)).toMatchObject(invalid);
    }

    set(0);
    await create(token);
    await create(by(`Bearer ${await sign(0)}`));
    // A connection whose certificate was not valid is retired after a minute.
    for (const client of [certificate, again]) {
      const isServed = () =>
        create(client).then(
          () => true,
          () => false,
        );
      await waitFor(isServed);
    }
    const { investors } = await token.listInvestors({ pageSize: 1_000 });
    const listed = investors.map(({ id }) => id);
    expect(listed).toEqual(listed.toSorted());
    expect(listed).toEqual(expect.arrayContaining(ids));
    expect(service.output()).not.toMatch(/"level":[56]0/);

    service.child.kill("SIGTERM");
    await untilWritten(service, "shutting down");
    set(seconds);
    expect(await service.exited).toBe(0);
  });
});
