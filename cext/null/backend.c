/* null/backend.c: a backend that accepts every op and computes nothing, to test and time the code around the kernels.
 *
 * Buffers are real: zeroed memory that is read and written. run() only copies the step block. The packed layout of a weight is
 * the file's bytes, each complemented. Handles own what calloc gave them, nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "size.h"

struct hal_device {
    uint64_t allocations;
};

struct hal_buffer {
    uint8_t *data;
    uint64_t size;
    void *owned; /* NULL: a wrap() of host memory */
};

struct hal_exec {
    hal_buffer *block;
};

const hal_backend *null_backend(void);

static _Thread_local const char *message = "";

static int fail(int code, const char *text) {
    message = text;
    return code;
}

static const char *last_error(void) {
    return message;
}

static int one(void) {
    return 1;
}

static int open_device(int index, const hal_options *options, hal_device **out) {
    (void)options;
    if (index != 0)
        return fail(HAL_E_INVALID, "there is no such null device, only 0");
    *out = calloc(1, sizeof **out);
    return *out ? 0 : fail(HAL_E_MEMORY, "no memory for a device");
}

static void close_device(hal_device *d) {
    free(d);
}

static void info(hal_device *d, hal_info *out) {
    *out = (hal_info){.name = "null",
                      .variant = "nothing is computed",
                      .threads = 1,
                      .memory_total = (uint64_t)1 << 40,
                      .memory_free = (uint64_t)1 << 40,
                      .allocations = d->allocations,
                      .flags = HAL_HOST_MEMORY | HAL_TEST_ONLY | HAL_EXPANDS};
}

static int new_buffer(hal_device *d, uint8_t *data, uint64_t size, void *owned, hal_buffer **out) {
    if (!data || !(*out = malloc(sizeof **out))) {
        free(owned);
        return fail(HAL_E_MEMORY, "no memory for a buffer");
    }
    **out = (hal_buffer){data, size, owned};
    d->allocations++;
    return 0;
}

static int alloc_buffer(hal_device *d, const hal_bufdesc *desc, hal_buffer **out) {
    void *data = desc->size < SIZE_MAX ? calloc(1, desc->size + 1) : NULL;
    return new_buffer(d, data, desc->size, data, out);
}

static int wrap_buffer(hal_device *d, const void *host, uint64_t size, hal_buffer **out) {
    return new_buffer(d, (uint8_t *)(uintptr_t)host, size, NULL, out);
}

static void free_buffer(hal_buffer *b) {
    if (b)
        free(b->owned);
    free(b);
}

static int inside(const hal_buffer *b, uint64_t offset, uint64_t size) {
    return offset <= b->size && size <= b->size - offset ? 0 : fail(HAL_E_INVALID, "outside of the buffer");
}

static int write_buffer(hal_buffer *b, uint64_t offset, const void *from, uint64_t size) {
    int code = b->owned ? inside(b, offset, size) : fail(HAL_E_INVALID, "the buffer is the host's own memory");
    if (!code && size)
        memcpy(b->data + offset, from, size);
    return code;
}

static int read_buffer(hal_buffer *b, uint64_t offset, void *to, uint64_t size) {
    int code = inside(b, offset, size);
    if (!code && size)
        memcpy(to, b->data + offset, size);
    return code;
}

/* Bytes of a row in the formats that it packs, Q8_0 and Q6_K; 0 for all others. */
static uint64_t row_bytes(uint32_t format, int64_t columns) {
    return columns < 1    ? 0
           : format == 8  ? size_mul((uint64_t)columns / 32, 34)
           : format == 14 ? size_mul((uint64_t)columns / 256, 210)
                          : 0;
}

static uint64_t packed(hal_device *d, uint32_t format, int64_t stack, int64_t rows, int64_t columns) {
    uint64_t bytes = size_mul(size_mul((uint64_t)stack, (uint64_t)rows), row_bytes(format, columns));
    (void)d;
    return stack < 1 || rows < 1 || bytes == SIZE_TOO_MUCH ? 0 : bytes;
}

static int pack(hal_buffer *to, uint64_t offset, uint32_t format, int64_t stack, int64_t rows, int64_t columns,
                const void *from) {
    uint64_t size = packed(NULL, format, stack, rows, columns);
    int code = to->owned && size ? inside(to, offset, size) : fail(HAL_E_INVALID, "nothing is packed here");
    for (uint64_t i = 0; !code && i < size; i++)
        to->data[offset + i] = (uint8_t)~((const uint8_t *)from)[i];
    return code;
}

static int supports(hal_device *d, const hal_plan *plan, uint32_t step) {
    (void)d;
    return step < plan->n_steps;
}

static int compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    if (plan->step_buffer >= plan->n_buffers)
        return fail(HAL_E_INVALID, "the plan has no step buffer");
    if (!(*out = calloc(1, sizeof **out)))
        return fail(HAL_E_MEMORY, "no memory for a plan");
    (*out)->block = buffers[plan->step_buffer];
    d->allocations++;
    return 0;
}

static int run(hal_exec *e, const void *block, uint64_t size) {
    return write_buffer(e->block, 0, block, size);
}

static int wait_done(hal_exec *e, uint32_t timeout_ms) {
    (void)e, (void)timeout_ms;
    return 0;
}

static void release(hal_exec *e) {
    free(e);
}

static const hal_backend backend = {
    .hash = HAL_ABI_HASH,
    .name = "null",
    .score = one,
    .count = one,
    .open = open_device,
    .close = close_device,
    .info = info,
    .alloc = alloc_buffer,
    .wrap = wrap_buffer,
    .free = free_buffer,
    .write = write_buffer,
    .read = read_buffer,
    .supports = supports,
    .compile = compile,
    .run = run,
    .wait = wait_done,
    .release = release,
    .error = last_error,
    .packed = packed,
    .pack = pack,
};

const hal_backend *null_backend(void) {
    return &backend;
}
