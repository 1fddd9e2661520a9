/* exec.c: plans of the test backend, and the thread of a device, which runs them in their order; see backend.c. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "own_rows.h"
#include "remote.h"

/* One write() per line, so that lines of several devices don't mix. */
static void note(const hal_device *d, const char *what) {
    char line[80];
    struct timespec now;
    int n;
    if (d->log < 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    n = snprintf(line, sizeof line, "%s remote:%d %lld\n", what, d->index,
                 (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    if (write(d->log, line, (size_t)n) != n)
        fprintf(stderr, "remote: a line of the log was lost\n");
}

void fill_poison(hal_buffer *b) {
    for (uint64_t at = 0; at < b->size; at += PIECE)
        cpu_backend()->write(b->cpu, at, b->device->poison, b->size - at < PIECE ? b->size - at : PIECE);
}

static void wait_for_leave(const hal_device *d) {
    char held[sizeof d->hold + 16], go[sizeof d->hold + 20];
    struct timespec step = {0, 1000000};
    if (!d->hold[0])
        return;
    snprintf(held, sizeof held, "%s.%d", d->hold, d->index);
    snprintf(go, sizeof go, "%s.%d.go", d->hold, d->index);
    while (access(held, F_OK) == 0 && unlink(go) != 0)
        nanosleep(&step, NULL);
}

static void execute(hal_exec *e) {
    int us = e->device->late_us;
    struct timespec late = {us / 1000000, (long)(us % 1000000) * 1000};
    note(e->device, "begin");
    wait_for_leave(e->device);
    nanosleep(&late, NULL);
    for (uint32_t i = 0; i < e->n_poisoned; i++)
        fill_poison(e->poisoned[i]);
    if (e->device->lost && e->device->done + 1 >= e->device->lost) {
        e->code = HAL_E_LOST;
        snprintf(e->why, sizeof e->why, "remote:%d was lost, as SATCHEL_REMOTE_LOST says", e->device->index);
        leave_group(e);
    } else
        e->code = run_parts(e);
    note(e->device, "end");
}

void *remote_work(void *argument) {
    hal_device *d = argument;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        if (d->done == d->last) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        hal_exec *e = d->queue[(d->done + 1) % DEEP];
        pthread_mutex_unlock(&d->lock);
        execute(e);
        pthread_mutex_lock(&d->lock);
        d->done++;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static int is_done(const hal_device *d, uint64_t run) {
    return d->done >= (run == EVERY ? d->last : run);
}

/* Waits until a run is done; the lock is held on return. 0, or HAL_E_TIMEOUT. */
int lock_done(hal_device *d, uint64_t run, uint32_t timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&d->lock);
    while (!is_done(d, run))
        if (timeout_ms == UINT32_MAX)
            pthread_cond_wait(&d->changed, &d->lock);
        else if (pthread_cond_timedwait(&d->changed, &d->lock, &until) != 0 && !is_done(d, run))
            return hal_fail(HAL_E_TIMEOUT, "the last run is not done yet");
    return 0;
}

void wait_idle(hal_device *d) {
    lock_done(d, EVERY, UINT32_MAX);
    pthread_mutex_unlock(&d->lock);
}

void release_exec(hal_exec *e) {
    if (!e)
        return;
    if (e->device && e->run)
        wait_idle(e->device);
    free_parts(e);
    free(e->poisoned);
    free(e->block);
    free(e);
}

int build_exec(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec *e) {
    hal_buffer **inner = calloc((size_t)plan->n_buffers + 1, sizeof *inner);
    int code;
    e->device = d;
    e->poisoned = calloc((size_t)plan->n_buffers + 1, sizeof *e->poisoned);
    if (!inner || !e->poisoned) {
        free(inner);
        return hal_fail(HAL_E_MEMORY, "no memory for a plan");
    }
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        inner[i] = buffers[i] ? buffers[i]->cpu : NULL;
        if (buffers[i] && (plan->buffers[i].usage == HAL_ARENA || plan->buffers[i].usage == HAL_OUT))
            e->poisoned[e->n_poisoned++] = buffers[i];
    }
    code = d->refuses ? hal_fail(HAL_E_UNSUPPORTED, "plans are refused, as SATCHEL_REMOTE_REFUSES says")
                      : build_parts(e, plan, inner);
    free(inner);
    if (code)
        return code;
    e->room = buffers[plan->step_buffer]->size;
    e->block = malloc(e->room);
    return e->block ? 0 : hal_fail(HAL_E_MEMORY, "no memory for a step block");
}

/* Writes how many of the step's rows are the member's own. */
static void count_own(hal_exec *e) {
    int32_t counts[HAL_COUNTS];
    if (!e->group)
        return;
    memcpy(counts, e->block, sizeof counts);
    counts[HAL_COUNT_OWN] = own_rows_count(counts[HAL_COUNT_TOKENS], e->rank, e->group->members);
    memcpy(e->block, counts, sizeof counts);
}

int queue_run(hal_exec *e, const void *block, uint64_t size, uint64_t first, uint32_t timeout_ms) {
    hal_device *d = e->device;
    int code = lock_done(d, e->run, timeout_ms);
    if (code) {
        pthread_mutex_unlock(&d->lock);
        return code;
    }
    while (d->last - d->done == DEEP)
        pthread_cond_wait(&d->changed, &d->lock);
    memcpy(e->block, block, size);
    count_own(e);
    e->size = size;
    e->first = first;
    e->run = ++d->last;
    d->queue[e->run % DEEP] = e;
    for (uint32_t i = 0; i < e->n_poisoned; i++)
        e->poisoned[i]->run = e->run;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return 0;
}
