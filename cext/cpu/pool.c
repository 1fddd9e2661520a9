/* pool.c: threads that wait for work by spinning for some 50 us and then sleep on a condition variable.
 *
 * A step of a plan takes microseconds, so the barrier is one counter that only grows: a thread adds one and waits until
 * the counter reaches the number of threads times its own count of barriers. A job is a new value of `job`; a sleeper
 * counts itself in `asleep` before it looks at `job` once more, and pool_run stores `job` before it looks at `asleep`,
 * both sequentially consistent, so no wake-up is lost. The pool owns its threads; pool_close ends and joins them.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

enum { LINE = 64, SPIN_NS = 50000, SPINS_BEFORE_YIELD = 256 };

typedef struct {
    _Alignas(LINE) pthread_t id;
    pool *owner;
    uint64_t barriers; /* how many this thread has passed */
    int number;
    _Alignas(LINE) atomic_uint_fast64_t range; /* what is left of its grains: step, first, end in 32, 16 and 16 bits */
} worker;

struct pool {
    _Alignas(LINE) atomic_uint_fast64_t job;
    _Alignas(LINE) atomic_uint_fast64_t arrived;
    _Alignas(LINE) atomic_int asleep;
    atomic_int stop;
    void (*fn)(void *, int);
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint32_t steps, count; /* number of the first step of this job, and how many it has */
    int n;
    worker workers[];
};

/* Where there are more threads than free CPUs, the one that is waited for may need ours: after some 10 us, yield. */
static void wait_a_little(int spins) {
    if (spins > SPINS_BEFORE_YIELD)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int64_t pool_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int pool_default_threads(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int pool_threads(const pool *p) {
    return p->n;
}

void pool_barrier(pool *p, int thread) {
    uint64_t goal = ++p->workers[thread].barriers * (uint64_t)p->n;
    int spins = 0;
    if (p->n == 1)
        return;
    atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel);
    while (atomic_load_explicit(&p->arrived, memory_order_acquire) < goal)
        wait_a_little(spins++);
}

/* Waits for a job other than `seen` and returns it. */
static uint64_t next_job(pool *p, uint64_t seen) {
    int64_t until = pool_now() + SPIN_NS;
    uint64_t job;
    for (int i = 1; i % 64 || pool_now() < until; i++) {
        if ((job = atomic_load_explicit(&p->job, memory_order_acquire)) != seen)
            return job;
        wait_a_little(i);
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while ((job = atomic_load(&p->job)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *work(void *argument) {
    worker *w = argument;
    pool *p = w->owner;
    for (uint64_t job = 0;;) {
        job = next_job(p, job);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return NULL;
        p->fn(p->context, w->number);
        pool_barrier(p, w->number);
    }
}

static void start_job(pool *p) {
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->asleep) == 0)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static uint64_t range_of(uint32_t step, int64_t first, int64_t end) {
    return (uint64_t)step << 32 | (uint64_t)first << 16 | (uint64_t)end;
}

/* A range that still bears another step's number is untouched: its owner, or whoever comes first, begins it. */
int64_t pool_claim(pool *p, int thread, int64_t grains, uint32_t step) {
    step += p->steps;
    for (int i = 0; i < p->n; i++) {
        int owner = (thread + i) % p->n;
        worker *w = p->workers + owner;
        uint_fast64_t range = atomic_load_explicit(&w->range, memory_order_relaxed);
        for (;;) {
            uint64_t whole = range_of(step, grains * owner / p->n, grains * (owner + 1) / p->n);
            uint64_t now = range >> 32 == step ? range : whole;
            int64_t first = now >> 16 & 0xFFFF, end = now & 0xFFFF;
            uint64_t left = i ? range_of(step, first, end - 1) : range_of(step, first + 1, end);
            if (first >= end)
                break;
            if (atomic_compare_exchange_weak_explicit(&w->range, &range, left, memory_order_relaxed,
                                                      memory_order_relaxed))
                return i ? end - 1 : first;
        }
    }
    return -1;
}

void pool_run(pool *p, uint32_t steps, void (*fn)(void *, int), void *context) {
    p->fn = fn;
    p->context = context;
    p->steps += p->count;
    p->count = steps;
    if (p->n > 1)
        start_job(p);
    fn(context, 0);
    pool_barrier(p, 0);
}

void pool_close(pool *p) {
    if (!p)
        return;
    atomic_store_explicit(&p->stop, 1, memory_order_release);
    start_job(p);
    for (int i = 1; i < p->n; i++)
        pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

pool *pool_open(int threads) {
    size_t size = sizeof(pool) + sizeof(worker) * (size_t)threads;
    pool *p = aligned_alloc(LINE, (size + LINE - 1) / LINE * LINE);
    if (!p)
        return NULL;
    atomic_init(&p->job, 0);
    atomic_init(&p->arrived, 0);
    atomic_init(&p->asleep, 0);
    atomic_init(&p->stop, 0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->steps = 1;
    p->count = 0;
    for (p->n = 0; p->n < threads; p->n++) {
        worker *w = p->workers + p->n;
        *w = (worker){.owner = p, .number = p->n};
        atomic_init(&w->range, 0);
        if (p->n > 0 && pthread_create(&w->id, NULL, work, w) != 0) {
            pool_close(p);
            return NULL;
        }
    }
    return p;
}
