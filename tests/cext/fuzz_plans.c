/* fuzz_plans.c: a libFuzzer target for plans: any tables, given to the CPU backend, are refused by compile() or by run(), or
 * they run without a step outside of their buffers. tests/fuzz/plans.py builds it and makes the inputs to begin with.
 *
 * An input is a `head`, then the tables of hal.h as they lie in memory, the step block, and for each buffer a length
 * (uint16) and so many bytes, which fill the buffer over and over. Read-only buffers are wrapped memory of exactly their
 * size, so that the address sanitizer sees the first byte too many.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"

enum { MOST_BUFFER = 1 << 18, RUNS = 2 };

typedef struct {
    uint8_t n_steps, n_views, n_buffers, n_ops;
    uint16_t n_args, n_block;
    uint32_t step_buffer;
} head;

typedef struct {
    const uint8_t *data;
    size_t size;
} stretch;

/* Buffers in use, and the memory of those that are wrapped. */
typedef struct {
    hal_buffer *handle[UINT8_MAX + 1];
    void *wrapped[UINT8_MAX + 1];
} memory;

const hal_backend *cpu_backend(void);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static hal_device *device;

static void stop(const char *what) {
    fprintf(stderr, "fuzz_plans: %s\n", what);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    hal_options options = {.threads = 2, .threads_decode = 1};
    (void)argc, (void)argv;
    if (cpu_backend()->open(0, &options, &device))
        stop(cpu_backend()->error());
    return 0;
}

/* A copy of the next `size` bytes, aligned as malloc aligns; zeros where the input ends before. The caller frees it. */
static void *taken(stretch *from, size_t size) {
    size_t there = size < from->size ? size : from->size;
    void *out = calloc(1, size ? size : 1);
    if (!out)
        stop("no memory");
    if (there)
        memcpy(out, from->data, there);
    from->data += there;
    from->size -= there;
    return out;
}

static void fill(uint8_t *to, size_t size, stretch from) {
    for (size_t i = 0; i < size; i++)
        to[i] = from.size ? from.data[i % from.size] : 0;
}

/* The next buffer's bytes: a length, and what it says. */
static stretch contents(stretch *from) {
    uint16_t size = 0;
    stretch out;
    if (from->size >= sizeof size) {
        memcpy(&size, from->data, sizeof size);
        from->data += sizeof size;
        from->size -= sizeof size;
    }
    out = (stretch){from->data, size < from->size ? size : from->size};
    from->data += out.size;
    from->size -= out.size;
    return out;
}

/* Memory for one buffer; 0 where the backend refuses it. */
static int make_buffer(const hal_bufdesc *d, stretch from, hal_buffer **out, void **wrapped) {
    const hal_backend *b = cpu_backend();
    hal_bufdesc desc = *d;
    uint8_t *image;
    int code;
    desc.size = desc.size < MOST_BUFFER ? desc.size : MOST_BUFFER;
    desc.align %= 4096; /* a larger one is granted, and is memory */
    if (posix_memalign((void **)&image, 64, desc.size ? desc.size : 1))
        stop("no memory");
    fill(image, desc.size, from);
    if (desc.usage == HAL_WEIGHT || desc.usage == HAL_CONST) {
        *wrapped = image;
        return b->wrap(device, image, desc.size, out) == 0;
    }
    code = b->alloc(device, &desc, out);
    if (!code && desc.size && b->write(*out, 0, image, desc.size))
        stop(b->error());
    free(image);
    return code == 0;
}

static void check_code(int code, const char *where) {
    if (code > 0 || code < HAL_E_LOST || (code && !cpu_backend()->error()[0]))
        stop(where);
}

static void run_plan(const hal_plan *plan, const memory *m, const uint8_t *block, size_t n_block) {
    const hal_backend *b = cpu_backend();
    hal_exec *e = NULL;
    int code;
    for (uint32_t i = 0; i < plan->n_steps; i++)
        b->supports(device, plan, i);
    code = b->compile(device, plan, m->handle, &e);
    check_code(code, "compile gives a code that is none, or no reason");
    if (code) {
        if (e)
            stop("compile failed and left something behind");
        return;
    }
    for (int i = 0; i < RUNS && !code; i++) {
        code = b->run(e, block, n_block);
        check_code(code, "run gives a code that is none, or no reason");
        if (!code)
            check_code(code = b->wait(e, UINT32_MAX), "wait gives a code that is none, or no reason");
    }
    b->release(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stretch from = {data, size};
    static memory m;
    head h;
    hal_plan plan = {0};
    void *tables[6];
    int whole = 1;
    if (size < sizeof h)
        return 0;
    memcpy(&h, data, sizeof h);
    from = (stretch){data + sizeof h, size - sizeof h};
    memset(&m, 0, sizeof m);
    plan.n_steps = h.n_steps, plan.n_views = h.n_views, plan.n_buffers = h.n_buffers, plan.n_ops = h.n_ops;
    plan.n_args = h.n_args, plan.step_buffer = h.step_buffer;
    plan.steps = tables[0] = taken(&from, h.n_steps * sizeof(hal_step));
    plan.views = tables[1] = taken(&from, h.n_views * sizeof(hal_view));
    plan.buffers = tables[2] = taken(&from, h.n_buffers * sizeof(hal_bufdesc));
    plan.ops = tables[3] = taken(&from, h.n_ops * sizeof(hal_op));
    plan.args = tables[4] = taken(&from, h.n_args);
    tables[5] = taken(&from, h.n_block);
    for (int i = 0; i < h.n_buffers; i++)
        whole &= make_buffer(plan.buffers + i, contents(&from), m.handle + i, m.wrapped + i);
    if (whole)
        run_plan(&plan, &m, tables[5], h.n_block);
    for (int i = 0; i < h.n_buffers; i++) {
        if (m.handle[i])
            cpu_backend()->free(m.handle[i]);
        free(m.wrapped[i]);
    }
    for (int i = 0; i < 6; i++)
        free(tables[i]);
    return 0;
}

/* --- mutation: half of the time a number of a table becomes another that is likely to be wrong */

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint32_t likely(uint32_t was, uint32_t *state) {
    static const uint32_t numbers[] = {0,   1,   2,       3,       4,       5,          16,          32,         64,
                                       255, 256, 1 << 16, 1 << 20, 1 << 24, 0x7FFFFFFF, 0x80000000u, 0xFFFFFFFFu};
    switch (next_random(state) % 6) {
    case 0:
        return was + 1;
    case 1:
        return was - 1;
    case 2:
        return was * 2;
    case 3:
        return was / 2;
    case 4:
        return was ^ 1u << next_random(state) % 32;
    default:
        return numbers[next_random(state) % (sizeof numbers / sizeof *numbers)];
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed) {
    uint32_t state = seed, number;
    size_t tables, at;
    head h;
    if (size < sizeof h + sizeof number || seed % 2)
        return LLVMFuzzerMutate(data, size, most);
    memcpy(&h, data, sizeof h);
    tables = sizeof h + h.n_steps * sizeof(hal_step) + h.n_views * sizeof(hal_view) +
             h.n_buffers * sizeof(hal_bufdesc) + h.n_ops * sizeof(hal_op) + h.n_args + h.n_block;
    tables = tables < size ? tables : size;
    for (uint32_t i = 0, n = 1 + next_random(&state) % 3; i < n; i++) {
        at = next_random(&state) % ((tables - sizeof number) / 4 + 1) * 4;
        memcpy(&number, data + at, sizeof number);
        number = likely(number, &state);
        memcpy(data + at, &number, sizeof number);
    }
    return size;
}
