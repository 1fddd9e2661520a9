/* process.c: see process.h. posix_spawn() is what a program with threads may call: a fork() of it could stop at a lock. */
#include "process.h"
#include "error.h"
#include "satchel.h"

#if defined(__APPLE__)
#include <TargetConditionals.h>
#endif
/* Phones let no app start programs, and the browser has none. */
#if defined(_WIN32) || defined(__wasi__) || defined(__ANDROID__) || (defined(TARGET_OS_IPHONE) && TARGET_OS_IPHONE)

int process_start(const char *program, process *out) {
    *out = (process){-1, 0, 0};
    return hal_fail(SATCHEL_E_LACKS, "%.60s: this library starts no worker process on this system", program);
}

int process_send(const process *p, const void *bytes, size_t size, int patience) {
    (void)p, (void)bytes, (void)size, (void)patience;
    return PROCESS_GONE;
}

int process_receive(const process *p, void *bytes, size_t size, int patience) {
    (void)p, (void)bytes, (void)size, (void)patience;
    return PROCESS_GONE;
}

void process_end(process *p, int at_once, char *how, size_t room) {
    (void)p, (void)at_once;
    if (room)
        *how = 0;
}

int process_is_ours(const process *p) {
    (void)p;
    return 1;
}

#else

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <crt_externs.h>
#define environ (*_NSGetEnviron())
#else
extern char **environ;
#endif
#if !defined(MSG_NOSIGNAL) /* macOS has SO_NOSIGPIPE */
#define MSG_NOSIGNAL 0
#endif

enum { PATIENCE_MS = 5000, STEP_MS = 5 }; /* of an end */
enum { SLICES = 20 };                     /* of a wait for a silent process */

/* Two connected sockets that no other program inherits and that raise no SIGPIPE; the first one is ours. */
static int connect_two(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return -1;
    for (int i = 0; i < 2; i++)
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
#if defined(SO_NOSIGPIPE)
    int on = 1;
    setsockopt(ends[0], SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    return 0;
}

/* A group of its own, so that Ctrl+C reaches this program alone; no signal is blocked or ignored. */
static int set_attributes(posix_spawnattr_t *a) {
    sigset_t none, usual;
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGCHLD);
    return posix_spawnattr_setpgroup(a, 0) || posix_spawnattr_setsigmask(a, &none) ||
           posix_spawnattr_setsigdefault(a, &usual) ||
           posix_spawnattr_setflags(a, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

/* An error number, or 0. dup2() onto the same number would leave the child's end closed, so it is moved away from 0 and 1. */
static int spawn(const char *program, int *theirs, pid_t *id) {
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)"worker", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int fault;
    if (*theirs <= 2) {
        int moved = fcntl(*theirs, F_DUPFD_CLOEXEC, 3);
        if (moved < 0)
            return errno;
        close(*theirs);
        *theirs = moved;
    }
    if ((fault = posix_spawn_file_actions_init(&actions)))
        return fault;
    if ((fault = posix_spawnattr_init(&attributes))) {
        posix_spawn_file_actions_destroy(&actions);
        return fault;
    }
    if (set_attributes(&attributes) || posix_spawn_file_actions_adddup2(&actions, *theirs, 0) ||
        posix_spawn_file_actions_adddup2(&actions, *theirs, 1))
        fault = ENOMEM;
    if (!fault)
        fault = posix_spawnp(id, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return fault;
}

int process_start(const char *program, process *out) {
    int ends[2], fault;
    pid_t id = 0;
    *out = (process){-1, 0, 0};
    if (connect_two(ends))
        return hal_fail(SATCHEL_E_WORKER, "%.200s: no socket for a worker process: %s", program, strerror(errno));
    fault = spawn(program, ends + 1, &id);
    close(ends[1]);
    if (fault) {
        close(ends[0]);
        return hal_fail(
            SATCHEL_E_WORKER,
            "%.200s: the worker process can't be started: %s; install Satchel, or set `worker` to its program", program,
            strerror(fault));
    }
    *out = (process){ends[0], (long)id, (long)getpid()};
    return 0;
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Whether the socket is ready, or broken, within so many milliseconds; -1: for ever. Signals do not make it longer. */
static int ready(int socket, short event, int ms) {
    struct pollfd one = {socket, event, 0};
    int64_t until = now_ms() + ms;
    for (;;) {
        int64_t left = ms < 0 ? -1 : until - now_ms();
        int found = poll(&one, 1, left < 0 && ms >= 0 ? 0 : (int)left);
        if (found >= 0 || errno != EINTR)
            return found != 0;
    }
}

/* Waits in slices, each of which counts once: a program that was stopped for an hour has lost one of them. */
static int waited(const process *p, short event, int patience) {
    int slice = patience / SLICES + 1;
    if (!patience)
        return ready(p->socket, event, -1);
    for (int i = 0; i < SLICES; i++)
        if (ready(p->socket, event, slice))
            return 1;
    return 0;
}

int process_send(const process *p, const void *bytes, size_t size, int patience) {
    const char *at = bytes;
    while (size) {
        ssize_t went = send(p->socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (went < 0 && errno == EINTR)
            continue;
        if (went < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!waited(p, POLLOUT, patience))
                return PROCESS_SILENT;
            continue;
        }
        if (went <= 0)
            return PROCESS_GONE;
        at += went;
        size -= (size_t)went;
    }
    return PROCESS_DONE;
}

int process_receive(const process *p, void *bytes, size_t size, int patience) {
    char *at = bytes;
    while (size) {
        ssize_t came = recv(p->socket, at, size, MSG_DONTWAIT);
        if (came < 0 && errno == EINTR)
            continue;
        if (came < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!waited(p, POLLIN, patience))
                return PROCESS_SILENT;
            continue;
        }
        if (came <= 0)
            return PROCESS_GONE;
        at += came;
        size -= (size_t)came;
    }
    return PROCESS_DONE;
}

int process_is_ours(const process *p) {
    return p->owner == (long)getpid();
}

/* Waits until the process has ended; 0: it has not in that time; -1: somebody else has asked for its end already. */
static pid_t await(pid_t id, int *status, int most_ms) {
    struct timespec step = {0, STEP_MS * 1000000};
    for (int waited = 0;; waited += STEP_MS) {
        pid_t ended = waitpid(id, status, most_ms < 0 ? 0 : WNOHANG);
        if (ended || waited >= most_ms) {
            if (ended < 0 && errno == EINTR)
                continue;
            return ended;
        }
        nanosleep(&step, NULL);
    }
}

void process_end(process *p, int at_once, char *how, size_t room) {
    int status = 0;
    pid_t id = (pid_t)p->id, ended;
    if (p->socket < 0)
        return;
    close(p->socket);
    if (!process_is_ours(p)) { /* it is not this process's child */
        *p = (process){-1, 0, 0};
        return;
    }
    *p = (process){-1, 0, 0};
    if (at_once || !(ended = await(id, &status, PATIENCE_MS))) {
        kill(id, SIGKILL);
        ended = await(id, &status, -1);
    }
    if (ended < 0)
        snprintf(how, room, "a status that this program has taken");
    else if (WIFSIGNALED(status))
        snprintf(how, room, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, room, "status %d", WEXITSTATUS(status));
}

#endif
