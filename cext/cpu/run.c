/* run.c: one step of the engine: copy the step block, put this run's sizes into the views, walk the steps.
 *
 * All threads walk the same list and claim grains of each step's work. A step of one grain runs on thread 0 while the
 * others go on to the next barrier; between two such steps there is none. Nothing is allocated.
 */
#include <string.h>

#include "device.h"

static int shared(const cpu_split *s) {
    return s->items > s->grain;
}

static int set_sizes(hal_exec *e, const int32_t *counts) {
    for (int i = 0; i < e->n_dims; i++) {
        const exec_dim *d = e->dims + i;
        int32_t n = counts[d->count];
        if (n < 0 || n > d->most)
            return cpu_fail(HAL_E_INVALID, "step block: counts[%d] is %d, the plan's bucket holds 0 to %d", d->count, n,
                            d->most);
        e->views[d->view].shape[0] = n;
    }
    return 0;
}

/* How each step is cut, and after which steps all threads must meet. */
static void set_splits(hal_exec *e, int threads) {
    for (int i = 0; i < e->n_steps; i++) {
        const exec_step *s = e->steps + i;
        cpu_split split = threads > 1 && s->kernel->split ? s->kernel->split(&s->call) : (cpu_split){1, 1};
        int64_t least = (split.items + POOL_GRAINS - 1) / POOL_GRAINS;
        e->splits[i] = (cpu_split){split.items, split.grain > least ? split.grain : least};
    }
    for (int i = 0; i + 1 < e->n_steps; i++)
        e->meet[i] = shared(e->splits + i) || shared(e->splits + i + 1);
}

/* The thread's part of a step: grains until none is left. */
static void share(hal_exec *e, int i, int thread) {
    const exec_step *s = e->steps + i;
    cpu_split split = e->splits[i];
    int64_t grains = (split.items + split.grain - 1) / split.grain, g;
    while ((g = pool_claim(e->device->pool, thread, grains, (uint32_t)i)) >= 0) {
        int64_t from = g * split.grain, to = from + split.grain;
        s->kernel->run(&s->call, from, to < split.items ? to : split.items, thread);
    }
}

/* A step on one thread: all of its items, however many they are. */
static void run_whole(const exec_step *s) {
    int64_t items = s->kernel->split ? s->kernel->split(&s->call).items : 1;
    if (items > 0)
        s->kernel->run(&s->call, 0, items, 0);
}

static void walk(void *context, int thread) {
    hal_exec *e = context;
    pool *p = e->device->pool;
    for (int i = 0; i < e->n_steps; i++) {
        int64_t start = e->times && thread == 0 ? pool_now() : 0;
        if (shared(e->splits + i))
            share(e, i, thread);
        else if (thread == 0)
            run_whole(e->steps + i);
        if (e->meet[i])
            pool_barrier(p, thread);
        if (e->times && thread == 0)
            e->times[i] += (uint64_t)(pool_now() - start);
    }
}

static int run_locked(hal_exec *e, const void *block, uint64_t size) {
    int32_t counts[HAL_COUNTS];
    int code, fault;
    memcpy(counts, block, sizeof counts);
    if ((code = set_sizes(e, counts)))
        return code;
    memcpy(e->block->data, block, size);
    atomic_store_explicit(&e->fault, 0, memory_order_relaxed);
    set_splits(e, pool_threads(e->device->pool));
    pool_run(e->device->pool, (uint32_t)e->n_steps, walk, e);
    if (!(fault = atomic_load_explicit(&e->fault, memory_order_relaxed)))
        return 0;
    return cpu_fail(HAL_E_INVALID, "step %d (%s): a token id, slot, position, block or row is out of range", fault - 1,
                    e->steps[fault - 1].op);
}

int cpu_times(hal_exec *e, uint64_t *ns, uint32_t n_steps) {
    if (!e->times || n_steps != (uint32_t)e->n_steps)
        return cpu_fail(HAL_E_INVALID, "times: the device was not opened to profile, or the plan has %d steps", e->n_steps);
    memcpy(ns, e->times, sizeof *ns * n_steps);
    return 0;
}

int cpu_run(hal_exec *e, const void *block, uint64_t size) {
    int code;
    if (size < HAL_COUNTS * sizeof(int32_t) || size > e->block->size)
        return cpu_fail(HAL_E_INVALID, "step block: %llu bytes, the step buffer has %llu", (unsigned long long)size,
                        (unsigned long long)e->block->size);
    pthread_mutex_lock(&e->device->busy);
    code = run_locked(e, block, size);
    pthread_mutex_unlock(&e->device->busy);
    return code;
}
