/* mapped.c: survives SIGBUS from a mapped file that was truncated, or that the disk cannot read.
 *
 * Touching such a page raises SIGBUS, which ends the process. In a range registered here the handler maps a page of zeros
 * instead and marks the range as lost. A step that read the range must check mapped_lost() before its result is used. Every
 * other SIGBUS goes to the handler that was in place before. A lost range stays lost until it is dropped.
 *
 * Other libraries install handlers too, and later: Ray does when a process joins its cluster, Python's faulthandler when it is
 * enabled. So mapped_watch() installs this one again before a step.
 */
#include "mapped.h"

#if defined(_WIN32) || defined(__wasi__) /* Windows does not truncate a mapped file, and WebAssembly maps none */
int mapped_enter(const void *data, uint64_t size) {
    (void)data, (void)size;
    return -1;
}

void mapped_drop(int range) {
    (void)range;
}

int mapped_lost(int range) {
    (void)range;
    return 0;
}

void mapped_watch(void) {}
#else
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANGES = 4096 };

/* The handler may read these at any time: `last` is written after `first`, and is 0 for a free entry. */
static struct {
    atomic_uintptr_t first, last;
    atomic_int lost;
} ranges[RANGES];
static atomic_int used; /* entries that were ever used */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* the handler that ours displaced last */
static struct sigaction first;  /* and the one that it displaced first */
static int installed;           /* ours has been in place */
static uintptr_t page_size;

/* Runs in the signal handler: mmap is a plain system call, so it is safe there. */
static int replace_page(uintptr_t at) {
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, count = atomic_load(&used), found = 0;
    for (int i = 0; i < count; i++) {
        uintptr_t last = atomic_load(&ranges[i].last);
        if (last && at >= atomic_load(&ranges[i].first) && at < last) {
            atomic_store(&ranges[i].lost, 1);
            found = 1;
        }
    }
    return found && mmap((void *)(at & ~(page_size - 1)), page_size, PROT_READ, how, -1, 0) != MAP_FAILED;
}

static int is_handler(const struct sigaction *a) {
    return (a->sa_flags & SA_SIGINFO) || (a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN);
}

/* A SIGBUS that is none of ours goes to the handler before. That one may end the process by sending the signal once more, and one that was
 * installed after ours calls ours for what it does not know: what comes back here goes to the first handler, then to the system. */
static void pass_on(int number, siginfo_t *info, void *context) {
    static atomic_uintptr_t passing; /* the thread that is in the handler before */
    static atomic_int returned;
    const int sent = info->si_code <= 0 || info->si_code == SI_USER || info->si_code == SI_QUEUE;
    uintptr_t self = (uintptr_t)pthread_self(), nobody = 0;
    const int nested = atomic_load(&passing) == self;
    const int round = (sent || nested ? atomic_fetch_add(&returned, 1) : 0) + nested;
    if (round == 0 && is_handler(&before)) {
        atomic_compare_exchange_strong(&passing, &nobody, self);
        if (before.sa_flags & SA_SIGINFO)
            before.sa_sigaction(number, info, context);
        else
            before.sa_handler(number);
        nobody = self;
        atomic_compare_exchange_strong(&passing, &nobody, 0);
        return;
    }
    if (round == 1 && is_handler(&first))
        sigaction(number, &first, NULL);
    else
        signal(number, SIG_DFL);
    if (sent) /* a fault comes again by itself when its instruction is tried again */
        raise(number);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    if (!replace_page((uintptr_t)info->si_addr))
        pass_on(number, info, context);
}

static int in_place(const struct sigaction *now) {
    return (now->sa_flags & SA_SIGINFO) && now->sa_sigaction == on_bus_error;
}

/* Where it is not in place. With `changing` locked. */
static void install(void) {
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    if (sigaction(SIGBUS, NULL, &now) || in_place(&now))
        return;
    sigemptyset(&ours.sa_mask);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    before = now;
    if (!installed)
        first = now;
    installed = !sigaction(SIGBUS, &ours, NULL) || installed;
}

void mapped_watch(void) {
    pthread_mutex_lock(&changing);
    install();
    pthread_mutex_unlock(&changing);
}

int mapped_enter(const void *data, uint64_t size) {
    int i, count;
    if (!size)
        return -1;
    pthread_mutex_lock(&changing);
    install();
    count = atomic_load(&used);
    for (i = 0; i < count && atomic_load(&ranges[i].last); i++)
        continue;
    if (i < RANGES && installed) {
        atomic_store(&ranges[i].lost, 0);
        atomic_store(&ranges[i].first, (uintptr_t)data);
        atomic_store(&ranges[i].last, (uintptr_t)data + (uintptr_t)size);
        if (i == count)
            atomic_store(&used, count + 1);
    } else {
        i = -1;
    }
    pthread_mutex_unlock(&changing);
    return i;
}

void mapped_drop(int range) {
    if (range >= 0)
        atomic_store(&ranges[range].last, 0);
}

int mapped_lost(int range) {
    return range >= 0 && atomic_load(&ranges[range].lost);
}
#endif
