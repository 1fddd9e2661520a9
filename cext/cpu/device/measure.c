/* measure.c: measures this machine's peak rates, to which `satchel bench` compares kernels: memory bandwidth of all threads,
 * and multiply-adds by the instructions of the kernel set in use. peak.c has the loops.
 *
 * A pass is one job of the pool, one part per thread. Passes grow until the threads' start-up is negligible, and the fastest
 * pass is the result, because it stands for the hardware's limit. The memory that is read is freed at the end of the call.
 */
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#endif

#include "device.h"
#include "os.h"

enum { PASS_NS = 4000000, ALL_NS = 80000000, HUGE = 2 << 20 };

typedef struct {
    const cpu_set *set;
    uint8_t *data;   /* the threads' parts, concatenated; NULL: multiply-adds are measured */
    uint64_t part;   /* bytes of a thread's part */
    uint64_t rounds; /* rounds of a pass */
    uint32_t what;
    int way; /* prefetch strategy, see cpu_read */
} job;

static void fill(void *context, int64_t part) {
    const job *j = context;
    memset(j->data + j->part * (uint64_t)part, 1, j->part);
}

static void pass(void *context, int64_t part) {
    const job *j = context;
    if (!j->data)
        j->set->multiply(j->what, j->rounds);
    else
        for (uint64_t r = 0; r < j->rounds; r++)
            j->set->read(j->data + j->part * (uint64_t)part, j->part, j->way);
}

/* Work per second of the best pass within some time; `unit`: the work of a round on all threads. */
static double best_pass(pool *p, job *j, double unit, int64_t within) {
    int64_t end = pool_now() + within;
    double best = 0;
    do {
        int64_t start = pool_now(), ns;
        pool_share(p, pool_threads(p), pass, j);
        ns = pool_now() - start;
        if (ns < PASS_NS)
            j->rounds *= 2;
        else if (unit * (double)j->rounds / (double)ns > best)
            best = unit * (double)j->rounds / (double)ns;
    } while (pool_now() < end || best == 0);
    return best * 1e9;
}

static int measure_read(hal_device *d, uint64_t bytes, double *per_second) {
    uint64_t threads = (uint64_t)pool_threads(d->pool);
    job j = {.set = d->set, .part = bytes / threads / CPU_READ_UNIT * CPU_READ_UNIT, .rounds = 1};
    void *memory = NULL;
    if (j.part == 0)
        j.part = CPU_READ_UNIT;
    if (bytes > SIZE_MAX / 2 || !(memory = os_alloc(HUGE, (j.part * threads + 2 * HUGE - 1) / HUGE * HUGE)))
        return hal_fail(HAL_E_MEMORY, "measure: cannot reserve %llu bytes", (unsigned long long)bytes);
    os_want_large_pages(memory, j.part * threads); /* without huge pages the result is lower */
    j.data = memory;
    pool_share(d->pool, pool_threads(d->pool), fill, &j);
    for (*per_second = 0; j.way < CPU_READ_WAYS; j.way++) {
        double rate = best_pass(d->pool, &j, (double)(j.part * threads), ALL_NS / 2);
        *per_second = rate > *per_second ? rate : *per_second;
    }
    os_free(memory);
    return 0;
}

static int measure_multiply(hal_device *d, uint32_t what, double *per_second) {
    job j = {.set = d->set, .rounds = 1, .what = what};
    uint64_t round = d->set->multiply(what, 1);
    if (!round)
        return hal_fail(HAL_E_UNSUPPORTED, "measure: the %s kernels have no instruction for rate %u", d->set->name,
                        what);
    *per_second = best_pass(d->pool, &j, (double)round * pool_threads(d->pool), ALL_NS);
    return 0;
}

int cpu_measure(hal_device *d, uint32_t what, uint64_t bytes, double *per_second) {
    int code = pool_check_process(d->pool);
    if (code)
        return code;
    pthread_mutex_lock(&d->busy);
    code = what == HAL_MEASURE_READ ? measure_read(d, bytes, per_second) : measure_multiply(d, what, per_second);
    pthread_mutex_unlock(&d->busy);
    return code;
}
