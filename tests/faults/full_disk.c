/* Makes a folder a full disk, for a process and all that it starts: LD_PRELOAD this.

   Calls that would need space below $FULL_DISK are counted over all processes in the file $FULL_DISK_COUNTER (16 bytes or
   more, zeroed): from number $FULL_DISK_AFTER on they fail with ENOSPC, or only that one if $FULL_DISK_ONCE is set. The
   counter file then holds, after the count, a line for each call that failed: the first is what broke. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static uint64_t *count;
static const char *folder;
static uint64_t first;
static int once;

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("FULL_DISK_COUNTER"), *after = getenv("FULL_DISK_AFTER");
    folder = getenv("FULL_DISK");
    if (!file || !after || !folder) return;
    int descriptor = REAL(open)(file, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *shared = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (shared == MAP_FAILED) return;
    count = shared;
    first = strtoull(after, NULL, 10);
    once = getenv("FULL_DISK_ONCE") != NULL;
}

static int below(const char *path) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void note(const char *call, const char *path) {
    char line[PATH_MAX + 32];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int log = REAL(open)(getenv("FULL_DISK_COUNTER"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (log < 0) return;
    if (REAL(write)(log, line, length) < 0) { /* the note is for the reader of a failed test only */ }
    close(log);
}

static int full(const char *call, const char *path) {
    if (!count || !below(path)) return 0;
    uint64_t number = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (once ? number != first : number < first) return 0;
    note(call, path);
    errno = ENOSPC;
    return 1;
}

static int full_at(const char *call, int at, const char *path) {
    char whole[PATH_MAX], base[PATH_MAX] = "";
    if (!count) return 0;
    if (path[0] == '/') return full(call, path);
    char link[64];
    snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    snprintf(whole, sizeof whole, "%.2000s/%.2000s", base, path);
    return full(call, whole);
}

static int full_file(const char *call, int descriptor) {
    char link[64], path[PATH_MAX];
    if (!count) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return full(call, path);
}

/* What is there already needs no new space, and a folder that is there is another error. */
static int is_new(int at, const char *path) {
    struct stat found;
    int before = errno, missing = fstatat(at, path, &found, AT_SYMLINK_NOFOLLOW) != 0;
    errno = before;
    return missing;
}

#define OPEN(name)                                                                                       \
    int name(const char *path, int flags, ...) {                                                         \
        va_list more;                                                                                    \
        va_start(more, flags);                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                          \
        va_end(more);                                                                                    \
        if (flags & O_CREAT && is_new(AT_FDCWD, path) && full_at("open", AT_FDCWD, path)) return -1;     \
        return REAL(name)(path, flags, mode);                                                            \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                     \
    int name(int at, const char *path, int flags, ...) {                                                 \
        va_list more;                                                                                    \
        va_start(more, flags);                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                          \
        va_end(more);                                                                                    \
        if (flags & O_CREAT && is_new(at, path) && full_at("open", at, path)) return -1;                 \
        return REAL(name)(at, path, flags, mode);                                                        \
    }
OPENAT(openat)
OPENAT(openat64)

#define ON_FILE(type, name, parameters, arguments, failed)                                               \
    type name parameters {                                                                               \
        if (full_file(#name, descriptor)) return failed;                                                 \
        return REAL(name) arguments;                                                                     \
    }
ON_FILE(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size), -1)
ON_FILE(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at), -1)
ON_FILE(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at), -1)
ON_FILE(ssize_t, writev, (int descriptor, const struct iovec *data, int size), (descriptor, data, size), -1)
ON_FILE(int, fsync, (int descriptor), (descriptor), -1)
ON_FILE(int, fdatasync, (int descriptor), (descriptor), -1)
ON_FILE(int, ftruncate, (int descriptor, off_t size), (descriptor, size), -1)
ON_FILE(int, ftruncate64, (int descriptor, off_t size), (descriptor, size), -1)
ON_FILE(int, fallocate, (int descriptor, int mode, off_t at, off_t size), (descriptor, mode, at, size), -1)
ON_FILE(int, posix_fallocate, (int descriptor, off_t at, off_t size), (descriptor, at, size), ENOSPC)
ON_FILE(int, posix_fallocate64, (int descriptor, off_t at, off_t size), (descriptor, at, size), ENOSPC)

int mkdir(const char *path, mode_t mode) {
    if (is_new(AT_FDCWD, path) && full_at("mkdir", AT_FDCWD, path)) return -1;
    return REAL(mkdir)(path, mode);
}

int mkdirat(int at, const char *path, mode_t mode) {
    if (is_new(at, path) && full_at("mkdir", at, path)) return -1;
    return REAL(mkdirat)(at, path, mode);
}

int rename(const char *from, const char *to) {
    if (full_at("rename", AT_FDCWD, to)) return -1;
    return REAL(rename)(from, to);
}

int renameat(int at, const char *from, int there, const char *to) {
    if (full_at("rename", there, to)) return -1;
    return REAL(renameat)(at, from, there, to);
}
