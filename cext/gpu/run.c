/* run.c: queues a step on the stream without waiting: upload of the step block, the launches, copies of small outputs to the
 * host. The launches of an exec never change, so compile() captures them as a graph (CUDA graph) that every run replays: the
 * first run of an exec takes no longer than the others.
 *
 * Up to GPU_BLOCKS steps of an exec may be in flight, each with its own pinned copy of the step block. The next wait() reports
 * a fault that a kernel found (an index out of range).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "group.h"
#include "own_rows.h"

enum { CAPTURE_MINE = 1, POLL_NS = 20000 };

/* A launch, or a library's all-reduce of as many rows as the step has. */
static int start_one(hal_exec *e, const gpu_launch *l, const int32_t *counts) {
    const gpu_call *c = e->calls + l->call;
    const gpu_view *out = c->v;
    uint64_t rows;
    if (l->function)
        return gpu_start(e->device, l, c, e->device->main);
    rows = (uint64_t)(out->count >= 0 ? counts[out->count] : out->shape[0]);
    rows = rows ? rows : 1; /* the members hear each other in any case, as group_call.h asks */
    return e->sum_of(e->group, e->rank, rows * (uint64_t)out->shape[1], e->device->main);
}

/* counts: of the step block; of a graph, which has no library's all-reduce, NULL. */
static int start_all(hal_exec *e, const int32_t *counts) {
    hal_device *d = e->device;
    int code = 0, before = -1;
    for (int i = 0; !code && i < e->n_launches; i++) {
        const gpu_launch *l = e->launches + i;
        if (e->marks && (int)l->call != before)
            code = gpu_check(d, d->api.record(e->marks[l->call], d->main), "an event");
        before = (int)l->call;
        if (!code)
            code = start_one(e, l, counts);
    }
    for (int i = 0; !code && i < e->n_outs; i++)
        code = gpu_check(d, d->api.read(e->outs[i]->mirror, e->outs[i]->at, e->outs[i]->size, d->main),
                         "reading an output");
    return code;
}

int gpu_capture(hal_exec *e) {
    hal_device *d = e->device;
    gpu_graph graph = NULL;
    int code, ended;
    if (e->marks || e->n_library || !d->api.capture || !d->api.instantiate)
        return 0;
    if ((code = gpu_check(d, d->api.capture(d->main, CAPTURE_MINE), "beginning a graph")))
        return code;
    code = start_all(e, NULL);
    ended = d->api.end_capture(d->main, &graph);
    if (!code)
        code = gpu_check(d, ended, "ending a graph");
    if (!code)
        code = gpu_check(d, d->api.instantiate(&e->graph, graph, 0), "making a graph");
    if (graph)
        d->api.end_graph(graph);
    if (!code && d->api.upload)
        code = gpu_check(d, d->api.upload(e->graph, d->main), "sending a graph");
    return code;
}

/* Adds the times of the last run, which is done, to the exec's. */
static int add_times(hal_exec *e) {
    hal_device *d = e->device;
    int code = 0;
    for (int i = 0; !code && e->marks && e->ran && i < e->n_calls; i++) {
        float ms = 0;
        code = gpu_check(d, d->api.elapsed(&ms, e->marks[i], e->marks[i + 1]), "timing a step");
        e->times[i] += (uint64_t)(ms * 1e6f);
    }
    e->ran = 0;
    return code;
}

/* before: the collectives of its group before the run. The device finds them in the step block, and how many rows are its own. */
static int run_locked(hal_exec *e, const void *block, uint64_t size, uint32_t before) {
    hal_device *d = e->device;
    int turn = e->turn, code = gpu_settle(d);
    e->turn = (turn + 1) % GPU_BLOCKS;
    for (int i = 0; !code && i < e->n_prefetched; i++)
        code = gpu_settle_prefetch(e->prefetched[i]);
    if (!code)
        code = gpu_check(d, d->api.wait(e->taken[turn]), "waiting for a step block's turn");
    if (!code && e->marks && e->ran && !(code = gpu_check(d, d->api.wait(e->done), "waiting for a step")))
        code = add_times(e);
    if (code)
        return code;
    memcpy(e->blocks[turn], block, size);
    if (e->group) {
        int32_t *counts = (int32_t *)e->blocks[turn];
        counts[HAL_COUNT_OWN] = own_rows_count(counts[HAL_COUNT_TOKENS], e->rank, e->members);
        counts[GROUP_COUNT] = (int32_t)before;
    }
    code = gpu_check(d, d->api.write(e->block->at, e->blocks[turn], size, d->main), "sending a step block");
    if (!code)
        code = gpu_check(d, d->api.record(e->taken[turn], d->main), "an event");
    if (!code)
        code = e->graph ? gpu_check(d, d->api.replay(e->graph, d->main), "starting a graph")
                        : start_all(e, (const int32_t *)e->blocks[turn]);
    if (!code && e->marks)
        code = gpu_check(d, d->api.record(e->marks[e->n_calls], d->main), "an event");
    if (!code)
        code = gpu_check(d, d->api.record(e->done, d->main), "an event");
    for (int i = 0; !code && i < e->n_outs; i++)
        e->outs[i]->writer = e;
    for (int i = 0; i < e->n_prefetched; i++)
        e->prefetched[i]->reader = e;
    e->ran = !code;
    return code;
}

int gpu_check_block(const hal_exec *e, const void *block, uint64_t size) {
    int32_t counts[HAL_COUNTS];
    if (size < sizeof counts || size > e->block->size)
        return hal_fail(HAL_E_INVALID, "step block: %llu bytes, the step buffer has %llu", (unsigned long long)size,
                        (unsigned long long)e->block->size);
    memcpy(counts, block, sizeof counts);
    for (int i = 0; i < HAL_COUNTS; i++)
        if (e->most[i] != INT32_MAX && (counts[i] < 0 || counts[i] > e->most[i]))
            return hal_fail(HAL_E_INVALID, "step block: counts[%d] is %d, the plan takes up to %d", i, counts[i],
                            e->most[i]);
    return 0;
}

int gpu_run(hal_exec *e, const void *block, uint64_t size) {
    int code = gpu_check_block(e, block, size);
    if (!code && e->group)
        code = hal_fail(HAL_E_INVALID, "the exec is a group's: run_group() runs it");
    if (code || (code = gpu_lock(e->device)))
        return code;
    code = run_locked(e, block, size, 0);
    gpu_unlock(e->device);
    return code;
}

int gpu_run_member(hal_exec *e, const void *block, uint64_t size, uint32_t before) {
    int code = gpu_lock_alone(e->device);
    if (code)
        return code;
    code = run_locked(e, block, size, before);
    gpu_unlock_alone(e->device);
    return code;
}

static int wait_until(hal_exec *e, uint32_t timeout_ms) {
    hal_device *d = e->device;
    struct timespec pause = {0, POLL_NS};
    if (timeout_ms == UINT32_MAX)
        return gpu_check(d, d->api.wait(e->done), "waiting for a step");
    for (uint64_t waited = 0;; waited += POLL_NS) {
        int state = d->api.reached(e->done);
        if (state != d->api.is.not_ready)
            return gpu_check(d, state, "waiting for a step");
        if (waited >= (uint64_t)timeout_ms * 1000000)
            return hal_fail(HAL_E_TIMEOUT, "the last run is not done yet");
        nanosleep(&pause, NULL);
    }
}

int gpu_wait(hal_exec *e, uint32_t timeout_ms) {
    hal_device *d = e->device;
    int code = gpu_check(d, d->api.enter(d->context), "taking the device's context");
    uint32_t fault;
    if (!code)
        code = wait_until(e, timeout_ms);
    if (e->group)
        code = e->fault_of(e->group, e->rank, code);
    if (code)
        return code;
    fault = *(volatile uint32_t *)e->fault;
    if (!fault)
        return 0;
    *e->fault = 0;
    return hal_fail(HAL_E_INVALID, "step %u (%.28s): a token id, slot, position, block or row is out of range",
                    fault - 1, fault <= (uint32_t)e->n_calls ? e->ops[fault - 1] : "?");
}

int gpu_times(hal_exec *e, uint64_t *ns, uint32_t n_steps) {
    int code;
    if (!e->times || n_steps != (uint32_t)e->n_calls)
        return hal_fail(HAL_E_INVALID, "times: the device was not opened to profile, or the plan has %d steps",
                        e->n_calls);
    if ((code = gpu_wait(e, UINT32_MAX)) || (code = gpu_lock(e->device)))
        return code;
    code = add_times(e);
    gpu_unlock(e->device);
    if (!code)
        memcpy(ns, e->times, sizeof *ns * n_steps);
    return code;
}

static void release_on_device(hal_exec *e) {
    hal_device *d = e->device;
    d->api.finish(d->main);
    for (int i = 0; i < e->n_outs; i++)
        if (e->outs[i]->writer == e)
            e->outs[i]->writer = NULL;
    for (int i = 0; i < e->n_prefetched; i++)
        if (e->prefetched[i]->reader == e)
            e->prefetched[i]->reader = NULL;
    for (int i = 0; i < GPU_BLOCKS; i++) {
        gpu_give(d, (uint64_t)(uintptr_t)e->blocks[i]);
        if (e->taken[i])
            d->api.end_event(e->taken[i]);
    }
    for (int i = 0; e->marks && i <= e->n_calls; i++)
        if (e->marks[i])
            d->api.end_event(e->marks[i]);
    if (e->done)
        d->api.end_event(e->done);
    gpu_give(d, (uint64_t)(uintptr_t)e->fault);
    if (e->graph)
        d->api.end_graph_exec(e->graph);
    gpu_scratch_leave(d, e->scratch);
    if (e->counters)
        d->api.free(e->counters);
}

void gpu_release(hal_exec *e) {
    if (!e)
        return;
    if (!gpu_lock(e->device)) {
        release_on_device(e);
        gpu_unlock(e->device);
    }
    free(e->calls);
    free(e->ops);
    free(e->launches);
    free(e->outs);
    free(e->prefetched);
    free(e->marks);
    free(e->times);
    free(e);
}
