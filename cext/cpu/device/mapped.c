/* mapped.c: survives SIGBUS from a mapped file that was truncated, or that the disk cannot read.
 *
 * Touching such a page raises SIGBUS, which ends the process. In a range registered here the handler maps a page of zeros
 * instead and marks the range as lost. A step that read the range must check mapped_lost() before its result is used. Every
 * other SIGBUS goes to the previously installed handler. A lost range stays lost until it is dropped.
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
static struct sigaction before;
static int installed;
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

static void on_bus_error(int number, siginfo_t *info, void *context) {
    if (replace_page((uintptr_t)info->si_addr))
        return;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        signal(number, SIG_DFL); /* the instruction is retried and ends the process */
}

static void install(void) {
    struct sigaction now = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&now.sa_mask);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    installed = !sigaction(SIGBUS, &now, &before);
}

int mapped_enter(const void *data, uint64_t size) {
    int i, count;
    if (!size)
        return -1;
    pthread_mutex_lock(&changing);
    if (!installed)
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
