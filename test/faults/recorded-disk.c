/*
 * Records what a process does to the files of one folder, and makes its disk fail. Loaded by
 * LD_PRELOAD:
 *
 *   cc -shared -fPIC -O2 -o recorded-disk.so recorded-disk.c
 *
 * Environment
 *   DISK_FOLDER  the folder, as realpath(3) has it; its subfolders are not watched, nor are
 *                files whose name ends in "-shm", which SQLite rebuilds after a crash.
 *   DISK_LOG     the log; several processes, one after another, may continue one.
 *   DISK_RULES   optional: a file of faults. It may be replaced at any time (by a rename);
 *                then counting starts anew. A line is
 *                  OPERATION SUFFIX FIRST COUNT ACTION
 *                from the FIRST to the (FIRST + COUNT - 1)th OPERATION (write, sync, truncate,
 *                read) on files whose name ends in SUFFIX ("*": on any), ACTION happens;
 *                COUNT 0 is for ever. Of several lines that match, the first one acts.
 *                  EIO, ENOSPC, EDQUOT  it fails and has no effect
 *                  short                half of a write or read is done
 *                  slow:MS              it is done after MS milliseconds
 *                  hang                 it never returns, and has no effect
 *                  lost                 a sync that fails with EIO, after which the kernel has
 *                                       the unsynced pages for clean: they can be read, but no
 *                                       later sync writes them
 *
 * No sync reaches the real disk: what is durable is what the log says.
 *
 * The log is a sequence of records, in the byte order of the machine: struct record, then data.
 * Each is one write(2) in O_APPEND mode; an operation is logged before it takes effect, and DONE
 * with the process and serial of its record when it has. What a process that was killed was
 * doing has no DONE, and its last record may be cut short.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum op {
  OPEN = 1, /* offset: 1 if the file is made by it; data: its name, or "." for the folder */
  WRITE,    /* offset: where; data: what */
  TRUNCATE, /* offset: the new size */
  SYNC,     /* of a file, or of the folder's entries */
  RENAME,   /* data: the old name, a zero byte, the new name */
  UNLINK,   /* data: the name */
  READ,     /* only if a fault strikes it */
  DONE,     /* offset: what the operation returned, or -errno */
};
/* The fault that strikes an operation: an errno, or one of these. */
enum { NONE = 0, SHORT = 1000, SLOW, HANG, LOST };

struct record {
  uint32_t size; /* of the record with its data */
  uint32_t process, serial;
  uint16_t op, fault;
  uint64_t inode;
  int64_t offset;
};

struct rule {
  char op[16], suffix[64], action[32];
  long first, count, seen;
};

#define FDS 65536
static struct { _Atomic uint64_t inode; char name[64]; } files[FDS];
static char folder[PATH_MAX], *rules_path;
static int log_fd = -1;
static atomic_uint last_serial;
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[16];
static int rule_count;
static struct stat rules_stat;

static void die(const char *why) {
  dprintf(2, "recorded-disk: %s: %s\n", why, strerror(errno));
  abort();
}

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("DISK_LOG"), *path = getenv("DISK_FOLDER");
  if (!log || !path) return;
  rules_path = getenv("DISK_RULES");
  snprintf(folder, sizeof folder, "%s", path);
  log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_fd < 0) die(log);
}

static uint32_t append(enum op op, int fault, uint64_t inode, int64_t offset, uint32_t serial,
                       const void *data, size_t size) {
  struct record head = {sizeof head + size, getpid(), serial, op, fault, inode, offset};
  if (op != DONE) head.serial = ++last_serial;
  struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
  if (syscall(SYS_writev, log_fd, parts, 2) != (long)head.size) die("the log");
  return head.serial;
}

/* Ends an operation; passes its result and errno on. */
static long done(uint32_t serial, long result) {
  int error = errno;
  append(DONE, 0, 0, result < 0 ? -error : result, serial, "", 0);
  errno = error;
  return result;
}

static void read_rules(void) {
  struct stat now;
  if (!rules_path || stat(rules_path, &now) != 0) return;
  if (now.st_ino == rules_stat.st_ino && now.st_mtim.tv_sec == rules_stat.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == rules_stat.st_mtim.tv_nsec) return;
  rules_stat = now;
  rule_count = 0;
  FILE *file = fopen(rules_path, "re");
  for (struct rule r = {0}; file && rule_count < 16 &&
       fscanf(file, "%15s %63s %ld %ld %31s", r.op, r.suffix, &r.first, &r.count, r.action) == 5;)
    rules[rule_count++] = r;
  if (file) fclose(file);
}

/* The fault that strikes this operation; for SLOW, for how many milliseconds. */
static int fault_of(const char *op, const char *name, long *ms) {
  char action[32] = "";
  pthread_mutex_lock(&rules_lock);
  read_rules();
  for (int i = 0; i < rule_count; i++) {
    struct rule *r = &rules[i];
    size_t length = strlen(name), suffix = strlen(r->suffix);
    if (strcmp(op, r->op)) continue;
    if (strcmp(r->suffix, "*") &&
        (suffix > length || strcmp(name + length - suffix, r->suffix))) continue;
    r->seen++;
    if (r->seen < r->first || (r->count && r->seen >= r->first + r->count) || *action) continue;
    strcpy(action, r->action);
  }
  pthread_mutex_unlock(&rules_lock);
  if (!*action) return NONE;
  if (sscanf(action, "slow:%ld", ms) == 1) return SLOW;
  static const struct { const char *name; int fault; } all[] = {
    {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},
    {"short", SHORT}, {"hang", HANG}, {"lost", LOST}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(action, all[i].name)) return all[i].fault;
  errno = EINVAL;
  die(action);
  return NONE;
}

/* Waits as a fault says. Returns whether the operation fails, with errno set. */
static int strikes(int fault, long ms) {
  if (fault == SLOW) usleep(ms * 1000);
  while (fault == HANG) pause();
  if (fault == NONE || fault == SLOW || fault == SHORT) return 0;
  errno = fault == LOST ? EIO : fault;
  return 1;
}

/* The inode of a watched descriptor, or 0. libuv closes its descriptors by syscall(2). */
static uint64_t watched(int fd) {
  struct stat now;
  if (fd < 0 || fd >= FDS || !files[fd].inode) return 0;
  if (fstat(fd, &now) == 0 && now.st_ino == files[fd].inode) return now.st_ino;
  return files[fd].inode = 0;
}

/* The name in the folder that a path stands for, "." for the folder itself, or NULL. */
static const char *name_of(const char *path, char *buffer) {
  if (log_fd < 0) return NULL;
  if (*path != '/') {
    if (!getcwd(buffer, PATH_MAX)) return NULL;
    strncat(buffer, "/", PATH_MAX - strlen(buffer) - 1);
    path = strncat(buffer, path, PATH_MAX - strlen(buffer) - 1);
  }
  size_t length = strlen(folder), all = strlen(path);
  if (strncmp(path, folder, length)) return NULL;
  if (!path[length]) return ".";
  if (path[length] != '/' || strchr(path + length + 1, '/')) return NULL;
  if (all > 4 && !strcmp(path + all - 4, "-shm")) return NULL;
  return path + length + 1;
}

int openat(int at, const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  char buffer[PATH_MAX];
  struct stat before, after;
  const char *name = at == AT_FDCWD || *path == '/' ? name_of(path, buffer) : NULL;
  if (!name) return syscall(SYS_openat, at, path, flags, mode);
  int is_new = stat(path, &before) != 0;
  int fd = syscall(SYS_openat, at, path, flags, mode);
  int error = errno;
  if (fd < 0) return fd;
  if (fd >= FDS || strlen(name) >= sizeof files[fd].name || fstat(fd, &after)) die(path);
  files[fd].inode = after.st_ino;
  strcpy(files[fd].name, name);
  /* The inode is known only now: a file that is made is logged after the fact, still empty. */
  done(append(OPEN, 0, after.st_ino, is_new, 0, name, strlen(name)), 0);
  if (!is_new && flags & O_TRUNC) done(append(TRUNCATE, 0, after.st_ino, 0, 0, "", 0), 0);
  errno = error;
  return fd;
}
int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char *, int, ...) __attribute__((alias("open")));

int close(int fd) {
  if (fd >= 0 && fd < FDS) files[fd].inode = 0;
  return syscall(SYS_close, fd);
}

/* Transfers at an offset, or where the descriptor stands (-1). */
static ssize_t transfer(enum op op, int fd, void *data, size_t size, off_t offset) {
  uint64_t inode = watched(fd);
  long ms, call = op == WRITE ? (offset < 0 ? SYS_write : SYS_pwrite64)
                              : (offset < 0 ? SYS_read : SYS_pread64);
  if (!inode) return syscall(call, fd, data, size, offset);
  int fault = fault_of(op == WRITE ? "write" : "read", files[fd].name, &ms);
  if (op == READ && !fault) return syscall(call, fd, data, size, offset);
  if (fault == SHORT) size = (size + 1) / 2;
  int is_void = fault && fault != SHORT && fault != SLOW;
  off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset;
  size_t logged = op == WRITE && !is_void ? size : 0;
  uint32_t serial = append(op, fault, inode, at, 0, data, logged);
  return done(serial, strikes(fault, ms) ? -1 : syscall(call, fd, data, size, offset));
}
ssize_t write(int fd, const void *data, size_t size) {
  return transfer(WRITE, fd, (void *)data, size, -1);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
  return transfer(WRITE, fd, (void *)data, size, offset);
}
ssize_t read(int fd, void *data, size_t size) { return transfer(READ, fd, data, size, -1); }
ssize_t pread64(int fd, void *data, size_t size, off_t offset) {
  return transfer(READ, fd, data, size, offset);
}

int fsync(int fd) {
  uint64_t inode = watched(fd);
  long ms;
  if (!inode) return syscall(SYS_fsync, fd);
  int fault = fault_of("sync", files[fd].name, &ms);
  uint32_t serial = append(SYNC, fault, inode, 0, 0, "", 0);
  return done(serial, strikes(fault, ms) ? -1 : 0);
}
int fdatasync(int fd) { return watched(fd) ? fsync(fd) : syscall(SYS_fdatasync, fd); }

int ftruncate64(int fd, off_t size) {
  uint64_t inode = watched(fd);
  long ms;
  if (!inode) return syscall(SYS_ftruncate, fd, size);
  int fault = fault_of("truncate", files[fd].name, &ms);
  if (strikes(fault, ms)) return -1;
  return done(append(TRUNCATE, fault, inode, size, 0, "", 0), syscall(SYS_ftruncate, fd, size));
}

int unlink(const char *path) {
  char buffer[PATH_MAX];
  const char *name = name_of(path, buffer);
  if (!name || access(path, F_OK)) return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  uint32_t serial = append(UNLINK, 0, 0, 0, 0, name, strlen(name));
  return done(serial, syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int rename(const char *from, const char *to) {
  char one[PATH_MAX], other[PATH_MAX], names[130];
  const char *old = name_of(from, one), *new = name_of(to, other);
  if (!old && !new) return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
  if (!old || !new) die("a rename across the folder's border");
  int size = snprintf(names, sizeof names, "%s%c%s", old, 0, new);
  uint32_t serial = append(RENAME, 0, 0, 0, 0, names, size);
  return done(serial, syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

/* What would change a watched file unseen. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (watched(fd)) die("writev is not recorded");
  return syscall(SYS_writev, fd, parts, count);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && protection & PROT_WRITE && flags & MAP_SHARED && watched(fd))
    die("writes to a mapped file are not recorded");
  return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}
