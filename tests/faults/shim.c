/* shim.c: a library for LD_PRELOAD that makes the n-th system call of a family fail, or ends the process there.
 *
 * Nothing happens until faults_arm() is called, or, in a process that cannot call it, until a file whose name ends with
 * SATCHEL_FAULTS_AFTER is opened (SATCHEL_FAULTS is "FAMILY:N:ERRNO:FLAGS" then). Calls on descriptors that
 * faults_exempt() names are never counted. The file SATCHEL_FAULTS_MARK is made when a fault happens. Calls of malloc are counted where they return into a library whose path holds
 * the text given. Linux with glibc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The same numbers stand in shim.py. */
enum {
    OPEN = 1,
    READ = 2,
    WRITE = 4,
    SYNC = 8,
    RENAME = 16,
    MMAP = 32,
    TRUNCATE = 64,
    CLOSE = 128,
    MALLOC = 256,
    FORK = 512,
    LOCK = 1024,
    FOLDER = 2048,
    SEEK = 4096,
    STAT = 8192,
    THREAD = 16384
};
enum { SHORT = 1, STICKY = 2, KILL_BEFORE = 4, KILL_AFTER = 8, POWER = 16, MOVE = 32 };
enum { EXEMPT = 1024, RANGES = 64, DIRTY = 64 };

static atomic_int families, flags, error_of;
static atomic_long at, seen, fired;
static atomic_llong shift;
static atomic_bool exempt[EXEMPT];
typedef struct {
    uintptr_t first, last;
} range;
/* Code of the libraries whose paths have the name in them, or of the one object that has the address in it. */
typedef struct {
    range at[RANGES];
    int count;
    char name[64];
    void *inside;
} ranges;
static ranges wanted = {.name = "libsatchel_"}, interpreter;
static char after[64], mark[512];

/* ---- what a power cut takes: bytes of files that were written and not synced ---- */

static struct {
    dev_t device;
    ino_t node;
    off_t synced;
    int dirty;
    char path[PATH_MAX];
} files[DIRTY];
static int file_count;
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;

static void note_write(int fd, int synced) {
    struct stat info;
    char link[64];
    ssize_t length;
    int i;
    if (!(atomic_load(&flags) & POWER) || syscall(SYS_fstat, fd, &info) || !S_ISREG(info.st_mode))
        return;
    pthread_mutex_lock(&files_lock);
    for (i = 0; i < file_count; i++)
        if (files[i].device == info.st_dev && files[i].node == info.st_ino)
            break;
    if (i < DIRTY) {
        if (i == file_count) {
            file_count++;
            files[i].device = info.st_dev, files[i].node = info.st_ino, files[i].synced = 0;
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            length = readlink(link, files[i].path, sizeof files[i].path - 1);
            files[i].path[length < 0 ? 0 : length] = 0;
        }
        files[i].dirty = !synced;
        if (synced)
            files[i].synced = info.st_size;
    }
    pthread_mutex_unlock(&files_lock);
}

static void note_rename(const char *to) {
    struct stat info;
    if (!(atomic_load(&flags) & POWER) || syscall(SYS_stat, to, &info))
        return;
    pthread_mutex_lock(&files_lock);
    for (int i = 0; i < file_count; i++)
        if (files[i].device == info.st_dev && files[i].node == info.st_ino && !realpath(to, files[i].path))
            files[i].path[0] = 0;
    pthread_mutex_unlock(&files_lock);
}

static void end_here(void) {
    if (atomic_load(&flags) & POWER)
        for (int i = 0; i < file_count; i++)
            if (files[i].dirty && files[i].path[0])
                syscall(SYS_truncate, files[i].path, files[i].synced);
    for (;;)
        syscall(SYS_kill, getpid(), SIGKILL);
}

/* ---- which call it is ---- */

/* Whether this call is the one: 0, or an errno to fail with, or -1 for a short count. Ends the process where asked. */
static int hit(int family, int fd, int *ends) {
    int saved = errno, how = atomic_load(&flags);
    long number;
    *ends = 0;
    if (!(atomic_load(&families) & family) || (fd >= 0 && fd < EXEMPT && atomic_load(&exempt[fd])))
        return 0;
    number = atomic_fetch_add(&seen, 1) + 1;
    if (number != atomic_load(&at) && !((how & STICKY) && number > atomic_load(&at) && atomic_load(&at)))
        return 0;
    atomic_fetch_add(&fired, 1);
    if (mark[0]) {
        syscall(SYS_close, syscall(SYS_open, mark, O_WRONLY | O_CREAT, 0600));
        errno = saved;
    }
    if (how & MOVE) {
        atomic_store(&shift, atomic_load(&error_of));
        return 0;
    }
    if (how & KILL_BEFORE)
        end_here();
    *ends = !!(how & KILL_AFTER);
    errno = saved;
    if (how & KILL_AFTER)
        return 0;
    if (how & SHORT && number == atomic_load(&at))
        return -1;
    return how & SHORT && !(how & STICKY) ? 0 : atomic_load(&error_of);
}

static int from(const ranges *r, const void *caller) {
    for (int i = 0; i < r->count; i++)
        if ((uintptr_t)caller >= r->at[i].first && (uintptr_t)caller < r->at[i].last)
            return 1;
    return 0;
}

static int find_ranges(struct dl_phdr_info *info, size_t size, void *found) {
    ranges *r = found;
    int before = r->count;
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, r->name))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && r->count < RANGES; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            r->at[r->count].first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            r->at[r->count].last = r->at[r->count].first + info->dlpi_phdr[i].p_memsz;
            r->count++;
        }
    if (r->inside && !from(r, r->inside))
        r->count = before;
    return 0;
}

/* The interpreter is a library, or, as Debian has it, a part of the program itself. */
static void find_libraries(void) {
    interpreter.inside = dlsym(RTLD_DEFAULT, "Py_GetVersion");
    wanted.count = interpreter.count = 0;
    dl_iterate_phdr(find_ranges, &wanted);
    dl_iterate_phdr(find_ranges, &interpreter);
}

void faults_exempt(int fd) {
    if (fd >= 0 && fd < EXEMPT)
        atomic_store(&exempt[fd], 1);
}

/* error: an errno; where MOVE is among the flags, the seconds by which the wall clock moves at that call.
 * library: a part of the paths of the libraries whose malloc calls count, NULL for Satchel's own. */
void faults_arm(int which, long number, int error, int how, const char *library) {
    if (library)
        snprintf(wanted.name, sizeof wanted.name, "%s", library);
    find_libraries();
    atomic_store(&seen, 0), atomic_store(&fired, 0), atomic_store(&at, number);
    atomic_store(&error_of, error), atomic_store(&flags, how);
    atomic_store(&families, which);
}

long faults_disarm(void) {
    atomic_store(&families, 0);
    return atomic_load(&seen);
}

long faults_fired(void) {
    return atomic_load(&fired);
}

void faults_shift(long seconds) {
    atomic_store(&shift, seconds);
}

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SATCHEL_FAULTS_AFTER");
    if (name)
        snprintf(after, sizeof after, "%s", name);
    if ((name = getenv("SATCHEL_FAULTS_MARK")))
        snprintf(mark, sizeof mark, "%s", name);
    if (getenv("SATCHEL_FAULTS_SHIFT"))
        faults_shift(atol(getenv("SATCHEL_FAULTS_SHIFT")));
}

/* Arms a process that cannot do so itself, when it opens the file that it was told of. */
static void look_for_marker(const char *path) {
    size_t length = strlen(path), end = strlen(after);
    const char *told = getenv("SATCHEL_FAULTS");
    int which, error, how;
    long number;
    if (!end || length < end || strcmp(path + length - end, after) || !told)
        return;
    after[0] = 0;
    if (sscanf(told, "%d:%ld:%d:%d", &which, &number, &error, &how) == 4)
        faults_arm(which, number, error, how, getenv("SATCHEL_FAULTS_LIBRARY"));
}

#define REAL(name, ...)                                                                                                \
    static __typeof__(name) *real;                                                                                     \
    if (!real)                                                                                                         \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);
#define DONE(result)                                                                                                   \
    do {                                                                                                               \
        if (ends)                                                                                                      \
            end_here();                                                                                                \
        return result;                                                                                                 \
    } while (0)
#define FAIL(code, value)                                                                                              \
    if (code > 0) {                                                                                                    \
        errno = code;                                                                                                  \
        return value;                                                                                                  \
    }

/* ---- files ---- */

#define OPENS(name)                                                                                                    \
    int name(const char *path, int how, ...) {                                                                         \
        va_list more;                                                                                                  \
        int ends, code, made, mode = 0;                                                                                \
        REAL(name)                                                                                                     \
        if (how & (O_CREAT | O_TMPFILE)) {                                                                             \
            va_start(more, how);                                                                                       \
            mode = va_arg(more, int);                                                                                  \
            va_end(more);                                                                                              \
        }                                                                                                              \
        look_for_marker(path);                                                                                         \
        code = hit(OPEN, -1, &ends);                                                                                   \
        FAIL(code, -1)                                                                                                 \
        made = real(path, how, mode);                                                                                  \
        DONE(made);                                                                                                    \
    }
OPENS(open);
OPENS(open64);

#define OPENS_AT(name)                                                                                                 \
    int name(int folder, const char *path, int how, ...) {                                                             \
        va_list more;                                                                                                  \
        int ends, code, made, mode = 0;                                                                                \
        REAL(name)                                                                                                     \
        if (how & (O_CREAT | O_TMPFILE)) {                                                                             \
            va_start(more, how);                                                                                       \
            mode = va_arg(more, int);                                                                                  \
            va_end(more);                                                                                              \
        }                                                                                                              \
        code = hit(OPEN, -1, &ends);                                                                                   \
        FAIL(code, -1)                                                                                                 \
        made = real(folder, path, how, mode);                                                                          \
        DONE(made);                                                                                                    \
    }
OPENS_AT(openat);
OPENS_AT(openat64);

#define STREAMS(name)                                                                                                  \
    FILE *name(const char *path, const char *mode) {                                                                   \
        int ends, code;                                                                                                \
        FILE *made;                                                                                                    \
        REAL(name)                                                                                                     \
        code = hit(OPEN, -1, &ends);                                                                                   \
        FAIL(code, NULL)                                                                                               \
        made = real(path, mode);                                                                                       \
        DONE(made);                                                                                                    \
    }
STREAMS(fopen);
STREAMS(fopen64);

#define HALF(size) ((size) > 1 ? (size) / 2 : (size))

#define MOVES(family, name, declared, fd, size, ...)                                                                   \
    ssize_t name declared {                                                                                            \
        int ends, code;                                                                                                \
        ssize_t done;                                                                                                  \
        REAL(name)                                                                                                     \
        code = hit(family, fd, &ends);                                                                                 \
        FAIL(code, -1)                                                                                                 \
        if (code < 0)                                                                                                  \
            size = HALF(size);                                                                                         \
        done = real(__VA_ARGS__);                                                                                      \
        if (family == WRITE && done > 0)                                                                               \
            note_write(fd, 0);                                                                                         \
        DONE(done);                                                                                                    \
    }
MOVES(READ, read, (int fd, void *to, size_t size), fd, size, fd, to, size);
MOVES(READ, pread, (int fd, void *to, size_t size, off_t from), fd, size, fd, to, size, from);
MOVES(READ, pread64, (int fd, void *to, size_t size, off64_t from), fd, size, fd, to, size, from);
MOVES(WRITE, write, (int fd, const void *from, size_t size), fd, size, fd, from, size);
MOVES(WRITE, pwrite, (int fd, const void *from, size_t size, off_t to), fd, size, fd, from, size, to);
MOVES(WRITE, pwrite64, (int fd, const void *from, size_t size, off64_t to), fd, size, fd, from, size, to);

/* A short count of a vector: half of its first piece. */
#define VECTORS(family, name, declared, fd, parts, count, ...)                                                         \
    ssize_t name declared {                                                                                            \
        struct iovec first;                                                                                            \
        int ends, code;                                                                                                \
        ssize_t done;                                                                                                  \
        REAL(name)                                                                                                     \
        code = hit(family, fd, &ends);                                                                                 \
        FAIL(code, -1)                                                                                                 \
        if (code < 0 && count > 0) {                                                                                   \
            first = parts[0];                                                                                          \
            first.iov_len = HALF(first.iov_len);                                                                       \
            parts = &first;                                                                                            \
            count = 1;                                                                                                 \
        }                                                                                                              \
        done = real(__VA_ARGS__);                                                                                      \
        if (family == WRITE && done > 0)                                                                               \
            note_write(fd, 0);                                                                                         \
        DONE(done);                                                                                                    \
    }
VECTORS(READ, preadv, (int fd, const struct iovec *parts, int count, off_t from), fd, parts, count, fd, parts, count,
        from);
VECTORS(READ, preadv64, (int fd, const struct iovec *parts, int count, off64_t from), fd, parts, count, fd, parts,
        count, from);
VECTORS(WRITE, writev, (int fd, const struct iovec *parts, int count), fd, parts, count, fd, parts, count);

/* What gives 0 or -1. */
#define PLAIN(family, name, declared, fd, then, ...)                                                                   \
    int name declared {                                                                                                \
        int ends, code, done;                                                                                          \
        REAL(name)                                                                                                     \
        code = hit(family, fd, &ends);                                                                                 \
        FAIL(code, -1)                                                                                                 \
        done = real(__VA_ARGS__);                                                                                      \
        if (!done) {                                                                                                   \
            then;                                                                                                      \
        }                                                                                                              \
        DONE(done);                                                                                                    \
    }
PLAIN(SYNC, fsync, (int fd), fd, note_write(fd, 1), fd);
PLAIN(SYNC, fdatasync, (int fd), fd, note_write(fd, 1), fd);
PLAIN(RENAME, rename, (const char *from, const char *to), -1, note_rename(to), from, to);
PLAIN(RENAME, renameat, (int a, const char *from, int b, const char *to), -1, , a, from, b, to);
PLAIN(RENAME, link, (const char *from, const char *to), -1, , from, to);
PLAIN(TRUNCATE, ftruncate, (int fd, off_t size), fd, note_write(fd, 0), fd, size);
PLAIN(TRUNCATE, ftruncate64, (int fd, off64_t size), fd, note_write(fd, 0), fd, size);
PLAIN(LOCK, flock, (int fd, int how), fd, , fd, how);
PLAIN(FOLDER, mkdir, (const char *path, mode_t mode), -1, , path, mode);
PLAIN(FOLDER, rmdir, (const char *path), -1, , path);
PLAIN(FOLDER, unlink, (const char *path), -1, , path);
PLAIN(STAT, fstat, (int fd, struct stat *out), fd, , fd, out);
PLAIN(STAT, fstat64, (int fd, struct stat64 *out), fd, , fd, out);

/* The descriptor is gone also where close() fails. */
int close(int fd) {
    int ends, code, done;
    REAL(close)
    code = hit(CLOSE, fd, &ends);
    done = real(fd);
    FAIL(code, -1)
    DONE(done);
}

#define SEEKS(name, type)                                                                                              \
    type name(int fd, type to, int whence) {                                                                           \
        int ends, code;                                                                                                \
        type done;                                                                                                     \
        REAL(name)                                                                                                     \
        code = hit(SEEK, fd, &ends);                                                                                   \
        FAIL(code, -1)                                                                                                 \
        done = real(fd, to, whence);                                                                                   \
        DONE(done);                                                                                                    \
    }
SEEKS(lseek, off_t);
SEEKS(lseek64, off64_t);

/* Not the interpreter's own: without memory for a thread's first frame, CPython 3.11 to 3.13 wait for that thread for ever. */
#define MAPS(name, type)                                                                                               \
    void *name(void *to, size_t size, int access, int how, int fd, type start) {                                       \
        int ends, code;                                                                                                \
        void *done;                                                                                                    \
        REAL(name)                                                                                                     \
        code = from(&interpreter, __builtin_return_address(0)) ? (ends = 0) : hit(MMAP, fd, &ends);                    \
        FAIL(code, MAP_FAILED)                                                                                         \
        done = real(to, size, access, how, fd, start);                                                                 \
        DONE(done);                                                                                                    \
    }
MAPS(mmap, off_t);
MAPS(mmap64, off64_t);

/* A library that comes later counts too. */
void *dlopen(const char *path, int how) {
    void *made;
    REAL(dlopen)
    made = real(path, how);
    if (atomic_load(&families))
        find_libraries();
    return made;
}

/* ---- memory: glibc's own names, since dlsym() may allocate ---- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

#define ALLOCATION(failed, real)                                                                                       \
    int ends;                                                                                                          \
    if (atomic_load(&families) & MALLOC && from(&wanted, __builtin_return_address(0)) && hit(MALLOC, -1, &ends) > 0) { \
        errno = ENOMEM;                                                                                                \
        return failed;                                                                                                 \
    }                                                                                                                  \
    return real

void *malloc(size_t size) {
    ALLOCATION(NULL, __libc_malloc(size));
}

void *calloc(size_t count, size_t size) {
    ALLOCATION(NULL, __libc_calloc(count, size));
}

void *realloc(void *old, size_t size) {
    ALLOCATION(NULL, __libc_realloc(old, size));
}

void *aligned_alloc(size_t align, size_t size) {
    ALLOCATION(NULL, __libc_memalign(align, size));
}

static int aligned(void **out, size_t align, size_t size) {
    void *made = __libc_memalign(align, size);
    if (made)
        *out = made;
    return made ? 0 : ENOMEM;
}

int posix_memalign(void **out, size_t align, size_t size) {
    ALLOCATION(ENOMEM, aligned(out, align, size));
}

/* ---- processes and threads ---- */

pid_t fork(void) {
    int ends, code;
    pid_t made;
    REAL(fork)
    code = hit(FORK, -1, &ends);
    FAIL(code, -1)
    made = real();
    if (!made)
        atomic_store(&families, 0);
    DONE(made);
}

/* A wrapper cannot return twice in one stack: a plain fork does what a caller may rely on. */
pid_t vfork(void) {
    return fork();
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
                char *const arguments[], char *const environment[]) {
    int ends, code;
    REAL(posix_spawn)
    code = hit(FORK, -1, &ends);
    if (code > 0)
        return code;
    return real(pid, path, actions, how, arguments, environment);
}

int pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*run)(void *), void *argument) {
    int ends, code;
    REAL(pthread_create)
    code = hit(THREAD, -1, &ends);
    if (code > 0)
        return code;
    return real(made, how, run, argument);
}

/* ---- the wall clock ---- */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = (int)syscall(SYS_clock_gettime, clock, now);
    if (!done && clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)atomic_load(&shift);
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int done = (int)syscall(SYS_gettimeofday, now, zone);
    if (!done)
        now->tv_sec += (time_t)atomic_load(&shift);
    return done;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
