/* remote/backend.c: a test device that behaves like a GPU: separate memory and asynchronous runs, on the CPU backend's kernels.
 *
 * It cannot wrap host memory. run() only queues, up to DEEP runs: the device's thread takes them in their order, waits
 * a moment, fills buffers whose contents end with a run (ARENA, OUT) with 0xFF, a NaN in every float format, and
 * runs the CPU backend's kernels. wait, and read of an ARENA or OUT buffer, wait for the last run of that exec or with that
 * buffer; write, copy and other reads until the queue is empty. alloc() fills new memory with 0xFF too, except weights and
 * states. The next wait on an exec reports a run's failure. The device owns its thread and a CPU device; handles here own
 * the CPU's handles.
 *
 * Runs are numbered from 1 on: number n is done when `done` of its device is n or more. Groups are in group.c.
 *
 * SATCHEL_REMOTE_DEVICES: number of devices, default 1. SATCHEL_REMOTE_LATE_US: delay before each run in microseconds, default
 * 100. SATCHEL_REMOTE_LOG: a file; each run appends a line when it begins and one when it ends. SATCHEL_REMOTE_HOLD: a path;
 * while the file PATH.N exists, each run of device N waits for the file PATH.N.go and removes it, so that a test controls when
 * a run ends. SATCHEL_REMOTE_LOST: "N:R": device N is lost at its run R, and fails each later one. SATCHEL_REMOTE_REFUSES: the
 * number of a device that refuses every plan. Of groups: SATCHEL_REMOTE_UNLIKE: the number of a device with another name than
 * the others. SATCHEL_REMOTE_UNREAD: the number of a device to whose memory the others claim access, while what they write there
 * does not arrive. SATCHEL_REMOTE_DRIFT: "N:C": on device N the result of each run's C-th collective, from 1 on, is wrong by 1000.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "remote.h"

const hal_backend *remote_backend(void);

enum { LATE_US = 100, MOST = 8, POISON = 0xFF };

/* Errors of the CPU backend need no copy: it is linked into this library, so hal_last_error() has their texts. */
static int fail(int code, const char *text) {
    return hal_fail(code, "%s", text);
}

static int one(void) {
    return 1;
}

/* An integer environment variable, with its default. */
static int number_of(const char *name, int usual) {
    const char *text = getenv(name);
    return text ? atoi(text) : usual;
}

static int count(void) {
    int n = number_of("SATCHEL_REMOTE_DEVICES", 1);
    return n < 0 ? 0 : n < MOST ? n : MOST;
}

/* The number behind "N:" of a variable, for device N; 0 for others. */
static uint64_t number_for(const char *name, int index) {
    const char *text = getenv(name), *number = text ? strchr(text, ':') : NULL;
    return number && atoi(text) == index ? strtoull(number + 1, NULL, 10) : 0;
}

static void close_device(hal_device *d) {
    lock_done(d, EVERY, UINT32_MAX);
    d->stop = 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    cpu_backend()->close(d->cpu);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    if (d->log >= 0)
        close(d->log);
    free(d);
}

static int open_device(int index, const hal_options *options, hal_device **out) {
    const char *log = getenv("SATCHEL_REMOTE_LOG"), *hold = getenv("SATCHEL_REMOTE_HOLD");
    hal_device *d;
    int code;
    if (index < 0 || index >= count())
        return fail(HAL_E_INVALID, "there is no such device: SATCHEL_REMOTE_DEVICES says how many there are");
    d = calloc(1, sizeof *d);
    code = d ? cpu_backend()->open(0, options, &d->cpu) : fail(HAL_E_MEMORY, "no memory for a device");
    if (code) {
        free(d);
        return code;
    }
    d->index = index;
    d->lost = number_for("SATCHEL_REMOTE_LOST", index);
    d->drift = (uint32_t)number_for("SATCHEL_REMOTE_DRIFT", index);
    d->unlike = number_of("SATCHEL_REMOTE_UNLIKE", -1) == index;
    d->unread = number_of("SATCHEL_REMOTE_UNREAD", -1) == index;
    d->refuses = number_of("SATCHEL_REMOTE_REFUSES", -1) == index;
    d->late_us = number_of("SATCHEL_REMOTE_LATE_US", LATE_US);
    snprintf(d->hold, sizeof d->hold, "%s", hold ? hold : "");
    d->log = log ? open(log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    memset(d->poison, POISON, PIECE);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    if (pthread_create(&d->thread, NULL, remote_work, d) != 0) {
        cpu_backend()->close(d->cpu);
        if (d->log >= 0)
            close(d->log);
        free(d);
        return fail(HAL_E_MEMORY, "cannot start the device's thread");
    }
    *out = d;
    return 0;
}

static void info(hal_device *d, hal_info *out) {
    cpu_backend()->info(d->cpu, out);
    snprintf(out->name, sizeof out->name, d->unlike ? "another remote" : "remote");
    out->flags = HAL_TEST_ONLY | HAL_EXPANDS;
}

static int alloc_buffer(hal_device *d, const hal_bufdesc *desc, hal_buffer **out) {
    hal_buffer *b = calloc(1, sizeof *b);
    int code = b ? cpu_backend()->alloc(d->cpu, desc, &b->cpu) : fail(HAL_E_MEMORY, "no memory for a buffer");
    if (code) {
        free(b);
        return code;
    }
    b->device = d;
    b->size = desc->size;
    if (desc->usage != HAL_WEIGHT && desc->usage != HAL_STATE)
        fill_poison(b);
    *out = b;
    return 0;
}

static void free_buffer(hal_buffer *b) {
    if (!b)
        return;
    wait_idle(b->device);
    cpu_backend()->free(b->cpu);
    free(b);
}

static int write_buffer(hal_buffer *b, uint64_t offset, const void *from, uint64_t size) {
    wait_idle(b->device);
    return cpu_backend()->write(b->cpu, offset, from, size);
}

static uint64_t packed(hal_device *d, uint32_t format, int64_t stack, int64_t rows, int64_t columns) {
    return cpu_backend()->packed(d->cpu, format, stack, rows, columns);
}

static int pack(hal_buffer *to, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
                const void *from) {
    wait_idle(to->device);
    return cpu_backend()->pack(to->cpu, offset, format, stack, rows, columns, from);
}

static int read_buffer(hal_buffer *b, uint64_t offset, void *to, uint64_t size) {
    lock_done(b->device, b->run ? b->run : EVERY, UINT32_MAX);
    pthread_mutex_unlock(&b->device->lock);
    return cpu_backend()->read(b->cpu, offset, to, size);
}

static int copy_buffer(hal_buffer *to, uint64_t to_offset, hal_buffer *from, uint64_t from_offset, uint64_t size) {
    wait_idle(to->device);
    wait_idle(from->device);
    return cpu_backend()->copy(to->cpu, to_offset, from->cpu, from_offset, size);
}

static int supports(hal_device *d, const hal_plan *plan, uint32_t step) {
    int collective = step < plan->n_steps ? supports_meeting(plan, step) : 0;
    return collective ? collective > 0 : cpu_backend()->supports(d->cpu, plan, step);
}

static int compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    hal_exec *e = calloc(1, sizeof *e);
    int code = e ? build_exec(d, plan, buffers, e) : fail(HAL_E_MEMORY, "no memory for a plan");
    if (code) {
        release_exec(e);
        return code;
    }
    *out = e;
    return 0;
}

static int run(hal_exec *e, const void *block, uint64_t size) {
    if (size > e->room)
        return fail(HAL_E_INVALID, "the step block is larger than the step buffer");
    return queue_run(e, block, size, 0, UINT32_MAX);
}

static int wait_done(hal_exec *e, uint32_t timeout_ms) {
    int code = lock_done(e->device, e->run, timeout_ms);
    if (!code && (code = e->code))
        fail(code, e->why);
    pthread_mutex_unlock(&e->device->lock);
    return code;
}

static int times(hal_exec *e, uint64_t *ns, uint32_t n_steps) {
    lock_done(e->device, e->run, UINT32_MAX);
    pthread_mutex_unlock(&e->device->lock);
    return times_of_parts(e, ns, n_steps);
}

static const hal_backend backend = {
    .hash = HAL_ABI_HASH,
    .name = "remote",
    .score = one,
    .count = count,
    .open = open_device,
    .close = close_device,
    .info = info,
    .alloc = alloc_buffer,
    .free = free_buffer,
    .write = write_buffer,
    .read = read_buffer,
    .copy = copy_buffer,
    .supports = supports,
    .compile = compile,
    .run = run,
    .wait = wait_done,
    .release = release_exec,
    .error = hal_last_error,
    .packed = packed,
    .pack = pack,
    .times = times,
    .join = remote_join,
    .part = remote_part,
    .group_info = remote_info,
    .compile_group = remote_compile,
    .run_group = remote_run,
};

const hal_backend *remote_backend(void) {
    return &backend;
}
