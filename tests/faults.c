/* Preloaded into a process, makes its n-th write, sync, rename or truncation below a folder go wrong.
 *
 *   fault_arm(folder, n, 'k')  the process kills itself with SIGKILL just before that call
 *   fault_arm(folder, n, 'f')  that call and every later one fails with ENOSPC: the disk is full
 *   fault_arm(folder, n, 'o')  that call alone does: somebody made room at once
 *
 * Or, for a process and its children: FAULT_FOLDER, FAULT_AT and FAULT_MODE in the environment.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long calls, target;
static char mode;

void fault_arm(const char *where, long n, char how) {
    strncpy(folder, where, sizeof folder - 1);
    calls = 0;
    target = n;
    mode = how;
}

__attribute__((constructor)) static void from_environment(void) {
    const char *where = getenv("FAULT_FOLDER"), *n = getenv("FAULT_AT"), *how = getenv("FAULT_MODE");
    if (where && n && how)
        fault_arm(where, atol(n), how[0]);
}

static int fails(const char *path) {
    if (!folder[0] || strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    calls++;
    if (!target || calls < target)
        return 0;
    if (mode == 'k' && calls == target)
        kill(getpid(), SIGKILL);
    if (mode == 'k' || (mode == 'o' && calls > target))
        return 0;
    errno = ENOSPC;
    return 1;
}

static int fails_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return fails(path);
}

#define REAL(name) static typeof(&name) real; if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n) { REAL(write); return fails_fd(fd) ? -1 : real(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { REAL(pwrite); return fails_fd(fd) ? -1 : real(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { REAL(pwrite64); return fails_fd(fd) ? -1 : real(fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *data, int n) { REAL(writev); return fails_fd(fd) ? -1 : real(fd, data, n); }
int fsync(int fd) { REAL(fsync); return fails_fd(fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fails_fd(fd) ? -1 : real(fd); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); return fails_fd(fd) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return fails_fd(fd) ? -1 : real(fd, n); }
int rename(const char *from, const char *to) { REAL(rename); return fails(to) ? -1 : real(from, to); }
