/*
 * Makes the disk fail under the files of one folder, and records what a process does to them.
 * Loaded by LD_PRELOAD:
 *
 *   cc -shared -fPIC -O2 -o recorded-disk.so recorded-disk.c
 *
 * Environment
 *   DISK_FOLDER  the folder, as realpath(3) has it; its subfolders are not watched, nor are
 *                files whose name ends in "-shm", which SQLite rebuilds after a crash.
 *   DISK_LOG     optional: the log. Several processes, one after another, may continue one.
 *   DISK_RULES   a file of faults. It may be replaced at any time (by a rename); then counting
 *                starts anew. A line is
 *                  OPERATION SUFFIX FIRST COUNT ACTION
 *                from the FIRST to the (FIRST + COUNT - 1)th OPERATION (write, sync, truncate)
 *                on files whose name ends in SUFFIX ("*": on any), ACTION happens; COUNT 0 is for
 *                ever.
 *                  EIO, ENOSPC  it fails and has no effect
 *                  short        half of a write is done
 *                  slow:MS      it is done after MS milliseconds
 *                  hang         it never returns, and has no effect
 *                  lost         a sync that fails with EIO, after which the kernel has the
 *                               unsynced pages for clean: they can be read, but no later sync
 *                               writes them
 *
 * No sync reaches the real disk: what is durable is what the log says.
 *
 * The log is a sequence of records, each struct record and then data, in one write(2) in
 * O_APPEND mode. A change is logged before it takes effect, a sync when it has succeeded.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
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
  CREATE = 1,
  WRITE,    /* offset: where; data: what */
  TRUNCATE, /* offset: the new size */
  SYNC,     /* of a file, or of the folder's entries; offset: how long the log was at its start */
  LOSE,     /* a sync that has lost its pages */
  UNLINK,
  STRUCK, /* a fault has struck */
};

struct record {
  uint32_t size, op; /* size: with the data */
  int64_t offset;
  char name[48]; /* "." is the folder */
};

enum fault { SHORT = 1000, LOST }; /* others are an errno, or 0 */

#define FDS 65536
static struct { uint64_t inode; char name[48]; } files[FDS];
static char folder[PATH_MAX];
static int log_fd = -1;

static void die(const char *why) {
  dprintf(2, "recorded-disk: %s: %s\n", why, strerror(errno));
  abort();
}

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("DISK_LOG"), *path = getenv("DISK_FOLDER");
  if (!path) return;
  snprintf(folder, sizeof folder, "%s", path);
  if (!log) return;
  log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_fd < 0) die(log);
}

static void append(enum op op, const char *name, int64_t offset, const void *data, size_t size) {
  if (log_fd < 0) return;
  int error = errno;
  struct record head = {sizeof head + size, op, offset, ""};
  strcpy(head.name, name);
  struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
  if (syscall(SYS_writev, log_fd, parts, 2) != (long)head.size) die("the log");
  errno = error;
}

static struct rule { char op[16], suffix[64], action[32]; long first, count, seen; } rules[16];
static int rule_count;

static void read_rules(void) {
  static struct stat last;
  struct stat now;
  const char *path = getenv("DISK_RULES");
  if (!path || stat(path, &now)) return;
  if (now.st_ino == last.st_ino && now.st_mtim.tv_nsec == last.st_mtim.tv_nsec) return;
  last = now;
  rule_count = 0;
  FILE *file = fopen(path, "re");
  for (struct rule r = {0}; file && rule_count < 16 &&
       fscanf(file, "%15s %63s %ld %ld %31s", r.op, r.suffix, &r.first, &r.count, r.action) == 5;)
    rules[rule_count++] = r;
  if (file) fclose(file);
}

/* Finds the action for this operation, or leaves it empty. */
static void find_action(const char *op, const char *name, char *action) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  read_rules();
  for (struct rule *r = rules; r < rules + rule_count; r++) {
    size_t length = strlen(name), suffix = strlen(r->suffix);
    int is_any = !strcmp(r->suffix, "*");
    if (strcmp(op, r->op)) continue;
    if (!is_any && (suffix > length || strcmp(name + length - suffix, r->suffix))) continue;
    r->seen++;
    if (r->seen >= r->first && (!r->count || r->seen < r->first + r->count))
      strcpy(action, r->action);
  }
  pthread_mutex_unlock(&lock);
}

/* The fault of an operation, once it has waited as long as the rules say. */
static int fault_of(const char *op, const char *name) {
  char action[32] = "";
  long ms;
  find_action(op, name, action);
  if (!*action) return 0;
  append(STRUCK, name, 0, "", 0);
  while (!strcmp(action, "hang")) pause();
  if (sscanf(action, "slow:%ld", &ms) == 1) return usleep(ms * 1000), 0;
  return !strcmp(action, "EIO") ? EIO : !strcmp(action, "ENOSPC") ? ENOSPC
       : !strcmp(action, "short") ? SHORT : LOST;
}

static int fail(int error) {
  errno = error;
  return -1;
}

/* The name of a watched descriptor, or NULL. libuv closes its descriptors by syscall(2). */
static const char *watched(int fd) {
  struct stat now;
  if (fd < 0 || fd >= FDS || !files[fd].inode) return NULL;
  if (fstat(fd, &now) == 0 && now.st_ino == files[fd].inode) return files[fd].name;
  files[fd].inode = 0;
  return NULL;
}

/* The name in the folder that a path stands for, "." for the folder itself, or NULL. */
static const char *name_of(const char *path, char *buffer) {
  if (!*folder) return NULL;
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
  if (fd < 0) return fd;
  if (fd >= FDS || strlen(name) >= sizeof files[fd].name || fstat(fd, &after)) die(path);
  files[fd].inode = after.st_ino;
  strcpy(files[fd].name, name);
  /* Whether a file is made or emptied is known only now. */
  if (is_new) append(CREATE, name, 0, "", 0);
  else if (flags & O_TRUNC) append(TRUNCATE, name, 0, "", 0);
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

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
  const char *name = watched(fd);
  if (name) {
    int fault = fault_of("write", name);
    if (fault && fault != SHORT) return fail(fault);
    if (fault) size = (size + 1) / 2;
    append(WRITE, name, offset, data, size);
  }
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

int fsync(int fd) {
  const char *name = watched(fd);
  if (!name) return syscall(SYS_fsync, fd);
  off_t start = log_fd < 0 ? 0 : lseek(log_fd, 0, SEEK_END);
  int fault = fault_of("sync", name);
  if (fault && fault != LOST) return fail(fault);
  append(fault ? LOSE : SYNC, name, start, "", 0);
  return fault ? fail(EIO) : 0;
}
int fdatasync(int fd) { return watched(fd) ? fsync(fd) : syscall(SYS_fdatasync, fd); }

int ftruncate64(int fd, off_t size) {
  const char *name = watched(fd);
  if (name) {
    int fault = fault_of("truncate", name);
    if (fault) return fail(fault);
    append(TRUNCATE, name, size, "", 0);
  }
  return syscall(SYS_ftruncate, fd, size);
}

int unlink(const char *path) {
  char buffer[PATH_MAX];
  const char *name = name_of(path, buffer);
  if (name && !access(path, F_OK)) append(UNLINK, name, 0, "", 0);
  return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* What would change a file that is logged unseen. */
static int is_logged(int fd) { return log_fd >= 0 && watched(fd); }
ssize_t write(int fd, const void *data, size_t size) {
  if (is_logged(fd)) die("writes without an offset are not recorded");
  return syscall(SYS_write, fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (is_logged(fd)) die("writev is not recorded");
  return syscall(SYS_writev, fd, parts, count);
}
int rename(const char *from, const char *to) {
  char buffer[PATH_MAX];
  if (log_fd >= 0 && (name_of(from, buffer) || name_of(to, buffer))) die("renames are not recorded");
  return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && protection & PROT_WRITE && flags & MAP_SHARED && is_logged(fd))
    die("writes to a mapped file are not recorded");
  return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}
