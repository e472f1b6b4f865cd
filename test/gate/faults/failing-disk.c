/*
 * Makes the disk fail under the files of one folder, and keeps what of them would survive a power
 * cut. It stands between the process and its system calls, since a disk of the kernel's that fails
 * needs a module and root, and knows nothing of power cuts. Loaded by LD_PRELOAD:
 *
 *   cc -shared -fPIC -O2 -o failing-disk.so failing-disk.c
 *
 * Environment
 *   DISK_FOLDER   the folder, as realpath(3) has it; its subfolders are not watched.
 *   DISK_DURABLE  optional: a folder for the copies that a sync brings up to date. A file NAME.lost
 *                 beside one has a byte for each page that a sync has lost: 1 until it is written
 *                 again.
 *   DISK_RULES    a file of faults. It may be replaced at any time (by a rename); then counting
 *                 starts anew. A line is
 *                   OPERATION SUFFIX WHEN ACTION
 *                 ACTION happens to an OPERATION (write, sync, truncate, unlink, open if it may make
 *                 the file, or any of them; or read, look, which is another open, rename, or lock)
 *                 on files whose name ends in SUFFIX (* for all), or on the folder itself, whose name
 *                 is a dot. WHEN is N from the N-th on, =N for that alone, /N for each N-th:
 *                   EIO, ENOSPC, EDQUOT, EROFS, EMFILE, EAGAIN
 *                                it fails and has no effect, but that a file was made
 *                   hang         it never returns, and has no effect
 *                   kill         it ends the process
 *                   lost         a sync that fails with EIO, after which the kernel has the
 *                                unsynced pages for clean: they can be read, but no later sync
 *                                writes them
 *
 * No sync reaches the real disk.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, LOST = 1000 /* other faults are an errno, or 0 */ };

static int ends_in(const char *text, const char *suffix) {
  size_t length = strlen(text), end = strlen(suffix);
  return length >= end && !strcmp(text + length - end, suffix);
}

/* The name in the folder of what a descriptor is open on, "" for the folder itself, or NULL. */
static const char *watched(int fd, char path[PATH_MAX]) {
  const char *folder = getenv("DISK_FOLDER");
  char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = folder ? readlink(link, path, PATH_MAX - 1) : -1;
  if (length < 0) return NULL;
  path[length] = 0;
  const char *name = path + strlen(folder);
  if (strncmp(path, folder, strlen(folder)) || (*name && *name != '/')) return NULL;
  return *name ? name + 1 : name;
}

/* The same for a path, which need not be there. */
static const char *watched_path(const char *file, char path[PATH_MAX]) {
  const char *folder = getenv("DISK_FOLDER"), *slash = strrchr(file, '/');
  char parent[PATH_MAX];
  snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - file + 1) : 1, slash ? file : ".");
  if (!folder || !realpath(parent, path) || strcmp(path, folder)) return NULL;
  return slash ? slash + 1 : file;
}

static struct rule { char op[16], suffix[64], when[16], action[32]; long seen; } rules[16];
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
       fscanf(file, "%15s %63s %15s %31s", r.op, r.suffix, r.when, r.action) == 4;)
    rules[rule_count++] = r;
  if (file) fclose(file);
}

/* Whether this is the time, or one of those, that a rule speaks of. */
static int is_due(struct rule *r) {
  long number = atol(r->when + !isdigit(*r->when));
  r->seen++;
  return *r->when == '=' ? r->seen == number : *r->when == '/' ? !(r->seen % number) : r->seen >= number;
}

/* Whether an operation is one of those that change the disk, and are meant by "any". */
static int changes(const char *op) { return strcmp(op, "read") && strcmp(op, "look") && strcmp(op, "rename") && strcmp(op, "lock"); }

/* The fault of an operation; it does not return if that is to hang. */
static int fault_of(const char *op, const char *name) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  char action[32] = "";
  pthread_mutex_lock(&lock);
  read_rules();
  for (struct rule *r = rules; r < rules + rule_count; r++)
    if (((!strcmp(r->op, "any") && changes(op)) || !strcmp(r->op, op)) &&
        (!strcmp(r->suffix, "*") || ends_in(*name ? name : ".", r->suffix)) && is_due(r))
      strcpy(action, r->action);
  pthread_mutex_unlock(&lock);
  if (!*action) return 0;
  dprintf(2, "the disk fails: %s %s %s\n", op, name, action);
  if (!strcmp(action, "kill")) kill(getpid(), SIGKILL);
  while (!strcmp(action, "hang") || !strcmp(action, "kill")) pause();
  static const struct { const char *name; int number; } errors[] = {
    {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS}, {"EMFILE", EMFILE}, {"EAGAIN", EAGAIN}};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (!strcmp(action, errors[i].name)) return errors[i].number;
  return LOST;
}

/* The same of an operation on what a descriptor is open on, or a path names. */
static int fault_on(const char *op, int fd) {
  char path[PATH_MAX];
  const char *name = watched(fd, path);
  return name ? fault_of(op, name) : 0;
}

static int fault_at(const char *op, const char *file) {
  char path[PATH_MAX];
  const char *name = watched_path(file, path);
  return name ? fault_of(op, name) : 0;
}

/* Whether a call has to fail, which then returns -1. */
static int fails(int fault) {
  if (fault) errno = fault == LOST ? EIO : fault;
  return fault;
}

/* Opens a file in the folder of the copies. */
static int open_durable(const char *name, const char *suffix, int flags) {
  const char *durable = getenv("DISK_DURABLE");
  char path[PATH_MAX];
  if (!durable) return -1;
  snprintf(path, sizeof path, "%s/%s%s", durable, name, suffix);
  return open(path, flags | O_CLOEXEC, 0600);
}

/* Says of the pages of a range whether a sync has lost them. */
static void mark(const char *name, int flags, off_t start, off_t end, char is_lost) {
  int error = errno, marks = open_durable(name, ".lost", O_WRONLY | flags);
  for (off_t page = start / PAGE; marks >= 0 && page * PAGE < end; page++)
    if (pwrite(marks, &is_lost, 1, page) != 1) abort();
  if (marks >= 0) close(marks);
  errno = error;
}

/* Brings the copy of a file up to date, save for the pages that are lost. */
static void copy_pages(int fd, const char *name) {
  int copy = open_durable(name, "", O_WRONLY | O_CREAT);
  int marks = open_durable(name, ".lost", O_RDONLY);
  char page[PAGE], is_lost;
  off_t end = 0;
  for (ssize_t size; copy >= 0 && (size = pread(fd, page, PAGE, end)) > 0; end += size) {
    if (pread(marks, &is_lost, 1, end / PAGE) == 1 && is_lost) continue;
    if (pwrite(copy, page, size, end) != size) abort();
  }
  if (copy >= 0 && (ftruncate(copy, end) || close(copy))) abort();
  if (marks >= 0) close(marks);
}

/* Removes the copies of files that are gone. */
static void sync_names(void) {
  const char *durable = getenv("DISK_DURABLE"), *folder = getenv("DISK_FOLDER");
  DIR *copies = durable ? opendir(durable) : NULL;
  for (struct dirent *entry; copies && (entry = readdir(copies));) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (!ends_in(path, ".lost") && access(path, F_OK)) unlinkat(dirfd(copies), entry->d_name, 0);
  }
  if (copies) closedir(copies);
}

int open64(const char *file, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  /* To close one that was there would drop the locks that the process has on it. */
  int is_made = flags & O_CREAT && access(file, F_OK);
  if (!is_made && fails(fault_at(flags & O_CREAT ? "open" : "look", file))) return -1;
  int fd = syscall(SYS_openat, AT_FDCWD, file, flags, mode);
  int fault = fd >= 0 && is_made ? fault_at("open", file) : 0;
  if (fault) close(fd);
  return fails(fault) ? -1 : fd;
}
int open(const char *, int, ...) __attribute__((alias("open64")));

int unlink(const char *file) {
  return fails(fault_at("unlink", file)) ? -1 : syscall(SYS_unlinkat, AT_FDCWD, file, 0);
}

int rename(const char *from, const char *to) {
  return fails(fault_at("rename", to)) ? -1 : syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

int fcntl64(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  int locks = (command == F_SETLK || command == F_SETLKW) && ((struct flock *)argument)->l_type != F_UNLCK;
  return locks && fails(fault_on("lock", fd)) ? -1 : syscall(SYS_fcntl, fd, command, argument);
}
int fcntl(int, int, ...) __attribute__((alias("fcntl64")));

ssize_t pread64(int fd, void *data, size_t size, off_t offset) {
  return fails(fault_on("read", fd)) ? -1 : syscall(SYS_pread64, fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size) {
  return fails(fault_on("write", fd)) ? -1 : syscall(SYS_write, fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  return fails(fault_on("write", fd)) ? -1 : syscall(SYS_writev, fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
  char path[PATH_MAX];
  const char *name = watched(fd, path);
  if (name && fails(fault_of("write", name))) return -1;
  if (name) mark(name, 0, offset, offset + size, 0);
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

int ftruncate64(int fd, off_t size) {
  return fails(fault_on("truncate", fd)) ? -1 : syscall(SYS_ftruncate, fd, size);
}

int fsync(int fd) {
  char path[PATH_MAX];
  const char *name = watched(fd, path);
  if (!name) return syscall(SYS_fsync, fd);
  int fault = fault_of("sync", name);
  if (fault == LOST) mark(name, O_CREAT, 0, lseek(fd, 0, SEEK_END), 1);
  if (fails(fault)) return -1;
  if (*name) copy_pages(fd, name);
  else sync_names();
  return 0;
}
int fdatasync(int fd) { return fsync(fd); }
