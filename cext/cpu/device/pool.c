/* pool.c: thread pool with work stealing: threads share the grains of a job, phase by phase.
 *
 * `open` is the current phase, in one word: its number, grains and threads. A thread takes a grain by compare-and-exchange on
 * a range of grains, from its own range first and then, from the far end, from the others'. A range has the number of its
 * phase: an older number means untouched, a newer one that the phase is over and the thread is late. A phase ends when its
 * taken grains end; it never waits for a thread that holds none. A thread reads a job only while it holds a grain, and the job
 * cannot end before that grain does. The thread that finishes the last grain of a phase opens the next one, or ends the job.
 *
 * Sleep. A thread that waits spins for some time and then sleeps on a word of its own. Where jobs come shortly after it slept, as between
 * the turns of a GPU, it spins for longer from then on, for to wake many threads takes longer than such a turn. To sleep, it counts itself in
 * `sleepers`, sets its word, and looks at `open` once more; publish() stores `open`, then looks at `sleepers` and the
 * words. All of these are sequentially consistent, so at least one of the two sees the other: no wake-up is lost.
 *
 * Turns. On a CPU that is shared with another program, a thread that is preempted in the middle of a grain delays all threads
 * for some milliseconds. A preempted thread (a long gap, and the kernel counted an involuntary switch) therefore records how
 * long its turn on the CPU was, and from then on yields a little earlier, between two grains. A yield after which no other
 * program ran lengthens the turn, until it is unlimited again. No result depends on any of this.
 *
 * The pool owns its threads; pool_close ends and joins them.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#include "error.h"
#include "os.h"
#include "pool.h"

/* The first phase's number, close to the wrap-around, so that every pool soon exercises it. */
#define FIRST (UINT32_MAX - 5000)
enum { LINE = 64, AWAKE = 0, ASLEEP = 1 };
/* Nanoseconds. LONG_SPIN: of a thread that last slept for less. GAP is longer than a grain of a single token and shorter than a time slice. */
enum { SPIN_NS = 100000, LONG_SPIN_NS = 2000000, GIVEN_NS = 50000 };
enum { GAP_NS = 1000000, LEAST_TURN_NS = 1000000, LONGEST_TURN_NS = 100000000 };

typedef struct {
    int64_t start, last, most; /* start of the turn; last reading of the clock; longest turn, 0: unlimited */
    int64_t switches;          /* involuntary context switches at the last reading */
} turn;

typedef struct {
    _Alignas(LINE) pthread_t id;
    pool *owner;
    int number;
    int patient; /* whether its last sleep was a short one */
    turn turn;
    _Alignas(LINE) atomic_uint_fast64_t range; /* its remaining grains: phase, first, end in 32, 16 and 16 bits */
    _Alignas(LINE) atomic_uint state;
} worker;

struct pool {
    _Alignas(LINE) atomic_uint_fast64_t open; /* phase, grains, threads in 32, 16 and 16 bits; no grains: no job */
    _Alignas(LINE) atomic_int_fast64_t left;  /* unfinished grains of the open phase */
    _Alignas(LINE) atomic_int sleepers;
    atomic_int stop;
    pool_job job;
    uint32_t first; /* the number of the job's first phase */
    int active, n;  /* threads of the job, of the pool */
    pid_t process;
    pthread_mutex_t lock; /* lock and wake: for systems without futex */
    pthread_cond_t wake;
    worker workers[];
};

int64_t pool_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int pool_threads(const pool *p) {
    return p->n;
}

int pool_forked(const pool *p) {
    return getpid() != p->process;
}

int pool_check_process(const pool *p) {
    if (!pool_forked(p))
        return 0;
    return hal_fail(HAL_E_INVALID, "the device was opened before this process was forked, and a child has none of its "
                                   "threads: open a device in the child");
}

static uint64_t word(uint32_t phase, int64_t a, int64_t b) {
    return (uint64_t)phase << 32 | (uint64_t)a << 16 | (uint64_t)b;
}

static int64_t grains_of(uint64_t open) {
    return open >> 16 & 0xFFFF;
}

static int threads_of(uint64_t open) {
    return open & 0xFFFF;
}

/* --- sleep */

#ifdef __linux__
static void sleep_on(pool *p, worker *w) {
    (void)p;
    syscall(SYS_futex, &w->state, FUTEX_WAIT_PRIVATE, ASLEEP, NULL, NULL, 0);
}

static void wake_up(pool *p, worker *w) {
    (void)p;
    syscall(SYS_futex, &w->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else
static void sleep_on(pool *p, worker *w) {
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&w->state) == ASLEEP)
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void wake_up(pool *p, worker *w) {
    (void)w;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}
#endif

/* Marks a sleeping worker awake; 1 if this call did so, not another thread's. */
static int rouse(pool *p, worker *w) {
    if (atomic_load(&w->state) != ASLEEP || atomic_exchange(&w->state, AWAKE) != ASLEEP)
        return 0;
    atomic_fetch_sub(&p->sleepers, 1);
    return 1;
}

/* Stores `open` and wakes the threads that it is for. */
static void publish(pool *p, uint64_t open) {
    int threads = threads_of(open);
    atomic_store(&p->open, open);
    if (atomic_load(&p->sleepers) == 0)
        return;
    for (int i = 0; i < threads; i++)
        if (rouse(p, p->workers + i))
            wake_up(p, p->workers + i);
}

static int is_news(uint64_t open, uint64_t seen, const worker *w) {
    return open != seen && w->number < threads_of(open);
}

static void doze(pool *p, worker *w, uint64_t seen) {
    atomic_fetch_add(&p->sleepers, 1);
    atomic_store(&w->state, ASLEEP);
    if (is_news(atomic_load(&p->open), seen, w))
        rouse(p, w);
    while (atomic_load(&w->state) == ASLEEP)
        sleep_on(p, w);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until `open` differs from `seen` and includes this thread. */
static void wait_for_news(pool *p, worker *w, uint64_t seen) {
    int64_t began = pool_now(), until = began + (w->patient ? LONG_SPIN_NS : SPIN_NS);
    for (int i = 1; !is_news(atomic_load_explicit(&p->open, memory_order_acquire), seen, w); i++) {
        if (i % 64 == 0 && pool_now() > until) {
            doze(p, w, seen);
            w->patient = pool_now() - began < LONG_SPIN_NS;
            return;
        }
        pause_cpu();
    }
}

/* --- turns */

static int64_t count_switches(void) {
#ifdef RUSAGE_THREAD
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
#else
    return 0;
#endif
}

/* Called between two grains: whether this thread should yield its CPU now. */
static int is_turn_over(turn *t) {
    int64_t now = pool_now(), gap = now - t->last, length = t->last - t->start, switches;
    t->last = now;
    if (gap > GAP_NS) {
        switches = count_switches();
        if (switches != t->switches && length >= LEAST_TURN_NS && length < LONGEST_TURN_NS)
            t->most = length - length / 4;
        if (switches != t->switches)
            t->start = now;
        t->switches = switches;
    }
    return t->most && now - t->start > t->most;
}

static void give_turn(turn *t) {
    int64_t before = pool_now();
    sched_yield();
    t->start = t->last = pool_now();
    t->switches = count_switches();
    if (t->start - before < GIVEN_NS && (t->most += t->most / 4) > LONGEST_TURN_NS)
        t->most = 0;
}

/* Called after a time without grains. Sleeping or spinning does not start a new turn. */
static void resume_turn(turn *t) {
    int64_t now = pool_now();
    if (now - t->last > GAP_NS) {
        t->start = now;
        t->switches = count_switches();
    }
    t->last = now;
}

/* --- work */

/* Takes a grain of the phase; -1: none is left. */
static int64_t claim(pool *p, int thread, uint64_t open) {
    uint32_t phase = open >> 32;
    int64_t grains = grains_of(open);
    int threads = threads_of(open);
    for (int i = 0; i < threads; i++) {
        int owner = (thread + i) % threads;
        int64_t from = grains * owner / threads, to = grains * (owner + 1) / threads;
        worker *w = p->workers + owner;
        if (from == to)
            continue;
        uint_fast64_t range = atomic_load_explicit(&w->range, memory_order_relaxed);
        for (;;) {
            int32_t age = (int32_t)((uint32_t)(range >> 32) - phase);
            uint64_t now = age ? word(phase, from, to) : range;
            int64_t first = now >> 16 & 0xFFFF, end = now & 0xFFFF;
            if (age > 0)
                return -1;
            if (first >= end)
                break;
            if (atomic_compare_exchange_weak_explicit(&w->range, &range,
                                                      i ? word(phase, first, end - 1) : word(phase, first + 1, end),
                                                      memory_order_relaxed, memory_order_relaxed))
                return i ? end - 1 : first;
        }
    }
    return -1;
}

static void open_phase(pool *p, int i) {
    atomic_store_explicit(&p->left, p->job.grains[i], memory_order_relaxed);
    publish(p, word(p->first + (uint32_t)i, p->job.grains[i], p->active));
}

/* Counts `done` grains of a phase that the thread has run; the phase's last one opens the next phase. */
static void count_done(pool *p, uint32_t phase, int64_t done) {
    int i = (int)(phase - p->first);
    const pool_job *job = &p->job;
    if (atomic_fetch_sub_explicit(&p->left, done, memory_order_acq_rel) != done)
        return;
    if (job->done)
        job->done(job->context, i);
    if (i + 1 < job->phases)
        open_phase(p, i + 1);
    else
        publish(p, word(phase, 0, 1)); /* wakes thread 0 alone */
}

/* Runs grains of the open phase until none is left. */
static void help(pool *p, worker *w, uint64_t open) {
    uint32_t phase = open >> 32;
    int64_t done = 0, grain;
    if (w->number >= threads_of(open))
        return;
    resume_turn(&w->turn);
    while ((grain = claim(p, w->number, open)) >= 0) {
        p->job.run(p->job.context, (int)(phase - p->first), grain, w->number);
        done++;
        if (is_turn_over(&w->turn)) {
            count_done(p, phase, done);
            done = 0;
            give_turn(&w->turn);
        }
    }
    if (done)
        count_done(p, phase, done);
}

static void *work(void *argument) {
    worker *w = argument;
    pool *p = w->owner;
    uint64_t open = 0;
    for (;;) {
        wait_for_news(p, w, open);
        open = atomic_load_explicit(&p->open, memory_order_acquire);
        if (atomic_load(&p->stop)) /* read after `open`: pool_close may have stored this `open`, and no other follows */
            return NULL;
        help(p, w, open);
    }
}

static void run_alone(const pool_job *job) {
    for (int i = 0; i < job->phases; i++) {
        for (int64_t grain = 0; grain < job->grains[i]; grain++)
            job->run(job->context, i, grain, 0);
        if (job->done)
            job->done(job->context, i);
    }
}

/* Phase numbers wrap: renews a range's number before it is so old that it looks newer. */
static void renumber(pool *p, uint32_t next) {
    if (next >> 30 != p->first >> 30)
        for (int i = 0; i < p->n; i++)
            atomic_store_explicit(&p->workers[i].range, word(next - 1, 0, 0), memory_order_relaxed);
    p->first = next;
}

void pool_run(pool *p, const pool_job *job, int threads) {
    worker *w = p->workers;
    uint64_t open;
    if (threads < 2 || job->phases < 1)
        return run_alone(job);
    renumber(p, p->first + (uint32_t)p->job.phases);
    p->job = *job;
    p->active = threads < p->n ? threads : p->n;
    open_phase(p, 0);
    while (grains_of(open = atomic_load_explicit(&p->open, memory_order_acquire))) {
        help(p, w, open);
        wait_for_news(p, w, open);
    }
}

typedef struct {
    void (*run)(void *, int64_t);
    void *context;
} shared;

static void run_shared(void *context, int phase, int64_t grain, int thread) {
    const shared *s = context;
    (void)phase, (void)thread;
    s->run(s->context, grain);
}

void pool_share(pool *p, int64_t grains, void (*run)(void *, int64_t), void *context) {
    shared s = {run, context};
    uint16_t n = (uint16_t)grains;
    pool_run(p, &(pool_job){.phases = 1, .grains = &n, .run = run_shared, .context = &s}, p->n);
}

void pool_close(pool *p) {
    if (!p)
        return;
    if (!pool_forked(p)) {
        atomic_store(&p->stop, 1);
        publish(p, word(p->first + (uint32_t)p->job.phases, 0, p->n));
        for (int i = 1; i < p->n; i++)
            pthread_join(p->workers[i].id, NULL);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    os_free(p);
}

pool *pool_open(int threads) {
    size_t size = sizeof(pool) + sizeof(worker) * (size_t)threads;
    pool *p = os_alloc(LINE, (size + LINE - 1) / LINE * LINE);
    if (!p)
        return NULL;
    *p = (pool){.first = FIRST, .process = getpid()};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (p->n = 0; p->n < threads; p->n++) {
        worker *w = p->workers + p->n;
        *w = (worker){.owner = p, .number = p->n};
        atomic_init(&w->range, word(FIRST - 1, 0, 0));
        if (p->n > 0 && pthread_create(&w->id, NULL, work, w) != 0) {
            pool_close(p);
            return NULL;
        }
    }
    return p;
}
