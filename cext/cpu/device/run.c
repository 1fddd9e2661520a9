/* run.c: run() of the CPU backend: copies the step block, sets this run's sizes in the views, and runs the plan's steps as one
 * job of the pool.
 *
 * A step of several grains is a phase of the job. Consecutive steps of one grain form one phase of one grain, which a single
 * thread runs without barriers. Nothing is allocated.
 *
 * Scratch and arena hold nothing between runs. What long steps alone used of them goes back to the system after QUIET short steps
 * in a row, as an answer has behind its prompt: a step that follows at once does not pay for it.
 */
#include <string.h>

#include "device.h"
#include "mapped.h"
#include "os.h"

/* Steps of at most so many tokens are memory-bound, as single tokens are. */
enum { DECODE_TOKENS = 32 };
enum { QUIET = 64 };

static int shared(const cpu_split *s) {
    return s->items > s->grain;
}

static int set_sizes(hal_exec *e, const int32_t *counts) {
    for (int i = 0; i < e->n_dims; i++) {
        const exec_dim *d = e->dims + i;
        int32_t n = counts[d->count];
        if (n < 0 || n > d->most)
            return hal_fail(HAL_E_INVALID, "step block: counts[%d] is %d, the plan's bucket holds 0 to %d", d->count, n,
                            d->most);
        e->views[d->view].shape[0] = n;
    }
    return 0;
}

/* Splits each step into items and grains, and groups steps into phases. */
static void set_phases(hal_exec *e, int threads) {
    int alone = 0; /* whether the last phase runs on one thread, so that the next single-grain step may join it */
    e->n_phases = 0;
    for (int i = 0; i < e->n_steps; i++) {
        const exec_step *s = e->steps + i;
        cpu_split split = threads > 1 && s->kernel->split ? s->kernel->split(&s->call) : (cpu_split){1, 1};
        int64_t least = (split.items + POOL_GRAINS - 1) / POOL_GRAINS;
        split.grain = split.grain > least ? split.grain : least;
        e->splits[i] = split;
        if (!alone || shared(&split)) {
            e->grains[e->n_phases] = (uint16_t)(shared(&split) ? (split.items + split.grain - 1) / split.grain : 1);
            e->phases[e->n_phases++].first = i;
        }
        alone = !shared(&split);
        e->phases[e->n_phases - 1].end = i + 1;
    }
}

/* Runs all items of a step on this thread. */
static void run_whole(const exec_step *s, int thread) {
    int64_t items = s->kernel->split ? s->kernel->split(&s->call).items : 1;
    if (items > 0)
        s->kernel->run(&s->call, 0, items, thread);
}

/* Adds a step's time. Called between two steps, so by one thread at a time. */
static void count_time(hal_exec *e, int i) {
    int64_t now = pool_now();
    e->times[i] += (uint64_t)(now - e->mark);
    e->mark = now;
}

static void run_grain(void *context, int phase, int64_t grain, int thread) {
    hal_exec *e = context;
    int first = e->phases[phase].first;
    cpu_split split = e->splits[first];
    int64_t from = grain * split.grain, to = from + split.grain;
    if (shared(&split)) {
        e->steps[first].kernel->run(&e->steps[first].call, from, to < split.items ? to : split.items, thread);
        return;
    }
    for (int i = first; i < e->phases[phase].end; i++) {
        run_whole(e->steps + i, thread);
        if (e->times)
            count_time(e, i);
    }
}

static void end_phase(void *context, int phase) {
    hal_exec *e = context;
    int first = e->phases[phase].first;
    if (shared(e->splits + first))
        count_time(e, first);
}

/* Takes the execs from the device's list that are `e`, or whose arena is `b`, or all where both are NULL. `busy` is held, or nobody
 * else uses the device. */
static void leave(hal_device *d, const hal_exec *e, const hal_buffer *b) {
    for (hal_exec **at = &d->resident; *at;) {
        hal_exec *found = *at;
        if ((e && found != e) || (b && found->arena != b)) {
            at = &found->next_resident;
            continue;
        }
        *at = found->next_resident;
        found->is_resident = 0;
    }
}

void cpu_leave_resident(hal_device *d, const hal_exec *e, const hal_buffer *b) {
    if (pool_forked(d->pool)) /* the lock may be held by a thread of the parent, and nothing runs any more */
        return;
    pthread_mutex_lock(&d->busy);
    leave(d, e, b);
    pthread_mutex_unlock(&d->busy);
}

/* Gives back what the listed execs have beyond this one, whose step was short. */
static void give_back(const hal_exec *e) {
    for (const hal_exec *other = e->device->resident; other; other = other->next_resident) {
        uint64_t kept = other->arena == e->arena ? e->arena_bytes : 0;
        if (other == e)
            continue;
        os_give_back(other->scratch, other->scratch_bytes);
        os_give_back(other->shared, other->shared_bytes);
        if (other->arena && kept < other->arena_bytes)
            os_give_back(other->arena->data + kept, other->arena_bytes - kept);
    }
    leave(e->device, NULL, NULL);
}

/* Counts a step that has ended. */
static void count_step(hal_exec *e, int is_long) {
    hal_device *d = e->device;
    d->quiet = is_long ? 0 : d->quiet + (d->quiet < QUIET);
    if (is_long && !e->is_resident) {
        e->next_resident = d->resident;
        d->resident = e;
        e->is_resident = 1;
    }
    if (d->quiet == QUIET && d->resident)
        give_back(e);
}

static int run_locked(hal_exec *e, const void *block, uint64_t size) {
    int32_t counts[HAL_COUNTS];
    int code, fault, threads;
    memcpy(counts, block, sizeof counts);
    if ((code = set_sizes(e, counts)))
        return code;
    memcpy(e->block->data, block, size);
    atomic_store_explicit(&e->fault, 0, memory_order_relaxed);
    threads = counts[HAL_COUNT_TOKENS] > DECODE_TOKENS ? e->device->threads : e->device->threads_decode;
    set_phases(e, threads);
    if (e->n_ranges)
        mapped_watch();
    e->mark = e->times ? pool_now() : 0;
    pool_run(e->device->pool,
             &(pool_job){.phases = e->n_phases,
                         .grains = e->grains,
                         .run = run_grain,
                         .done = e->times ? end_phase : NULL,
                         .context = e},
             threads);
    count_step(e, counts[HAL_COUNT_TOKENS] > DECODE_TOKENS);
    for (int i = 0; i < e->n_ranges; i++)
        if (mapped_lost(e->ranges[i]))
            return hal_fail(HAL_E_INVALID, MAPPED_LOST);
    if (!(fault = atomic_load_explicit(&e->fault, memory_order_relaxed)))
        return 0;
    return hal_fail(HAL_E_INVALID, "step %d (%s): a token id, slot, position, block or row is out of range", fault - 1,
                    e->steps[fault - 1].op);
}

int cpu_times(hal_exec *e, uint64_t *ns, uint32_t n_steps) {
    if (!e->times || n_steps != (uint32_t)e->n_steps)
        return hal_fail(HAL_E_INVALID, "times: the device was not opened to profile, or the plan has %d steps",
                        e->n_steps);
    memcpy(ns, e->times, sizeof *ns * n_steps);
    return 0;
}

int cpu_run(hal_exec *e, const void *block, uint64_t size) {
    int code;
    if (size < HAL_COUNTS * sizeof(int32_t) || size > e->block->size)
        return hal_fail(HAL_E_INVALID, "step block: %llu bytes, the step buffer has %llu", (unsigned long long)size,
                        (unsigned long long)e->block->size);
    if ((code = pool_check_process(e->device->pool)))
        return code;
    pthread_mutex_lock(&e->device->busy);
    code = run_locked(e, block, size);
    pthread_mutex_unlock(&e->device->busy);
    return code;
}
