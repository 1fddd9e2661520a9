/* simple.c: a whole backend in one file, written against Satchel's headers alone. It computes rms_norm, swiglu and add of
 * float32 numbers on the CPU, one thread, and leaves every other op to the CPU's own backend: supports() says so. A plan is
 * cut where the work changes hands, and values are copied there.
 *
 * Built and used:
 *     cc -O2 -std=c11 -shared -fPIC -I"$(python -m satchel.cext)" -o libsatchel_simple.so simple.c -lm
 *     SATCHEL_BACKENDS=. satchel run --device simple "Hello!"
 *
 * Device, buffers and execs belong to the caller, who ends each with its own call; an exec keeps copies of what it needs of
 * the plan, because the plan's tables end with compile().
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "views.h"

enum { F32 = 0, INPUTS = 2 };

struct hal_device {
    uint64_t allocations;
};

struct hal_buffer {
    uint8_t *data;
    uint64_t size;
};

/* Where a view's numbers are: `rows` rows of `width`, `stride` bytes apart. */
typedef struct {
    uint8_t *data;
    uint64_t stride, width;
    int32_t rows, count; /* count >= 0: the step block's counts[count] says how many rows there are this time */
} matrix;

typedef struct {
    void (*run)(const matrix *m, int32_t rows, float arg);
    matrix m[1 + INPUTS]; /* output, inputs */
    float arg;
} call;

struct hal_exec {
    hal_buffer *block;
    uint32_t n;
    call *calls;
};

/* --- the ops: m[0] is the output, m[1] and m[2] the inputs; runtime/ops/__init__.py defines what they mean */

static float *row(const matrix *m, int32_t i) {
    return (float *)(m->data + m->stride * (uint64_t)i);
}

/* Rows may be several heads of w's length side by side, each normed by itself. */
static void rms_norm(const matrix *m, int32_t rows, float eps) {
    uint64_t d = (uint64_t)m[2].rows;
    for (int32_t i = 0; i < rows; i++)
        for (uint64_t head = 0; head < m->width; head += d) {
            const float *x = row(m + 1, i) + head;
            float *y = row(m, i) + head, sum = 0;
            for (uint64_t k = 0; k < d; k++)
                sum += x[k] * x[k];
            sum = sqrtf(sum / (float)d + eps);
            for (uint64_t k = 0; k < d; k++)
                y[k] = x[k] / sum * *row(m + 2, (int32_t)k);
        }
}

static void swiglu(const matrix *m, int32_t rows, float unused) {
    (void)unused;
    for (int32_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < m->width; k++) {
            float gate = row(m + 1, i)[k];
            row(m, i)[k] = gate / (1 + expf(-gate)) * row(m + 2, i)[k];
        }
}

static void add(const matrix *m, int32_t rows, float unused) {
    (void)unused;
    for (int32_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < m->width; k++)
            row(m, i)[k] = row(m + 1, i)[k] + row(m + 2, i)[k];
}

/* --- what is asked of it */

static _Thread_local char message[256];

static int fail(int code, const char *text) {
    snprintf(message, sizeof message, "%s", text);
    return code;
}

static const char *last_error(void) {
    return message;
}

/* A plan may be wrong, and must not crash us: every number is looked at before it is used. */
static const char *read_view(const hal_plan *plan, hal_buffer *const *buffers, const hal_view *v, matrix *out) {
    const char *fault = view_shape_fault(v);
    if (fault)
        return fault;
    if (v->format != F32)
        return "only float32 is computed here";
    if (v->buffer >= plan->n_buffers)
        return "it names no buffer of the plan";
    if ((fault = view_bounds_fault(v, 1, 4, buffers ? buffers[v->buffer]->size : plan->buffers[v->buffer].size)))
        return fault;
    if ((v->offset | v->stride) % 4)
        return "numbers lie at multiples of four bytes";
    *out = (matrix){buffers ? buffers[v->buffer]->data + v->offset : NULL, v->stride, view_width(v), v->shape[0],
                    v->count};
    return NULL;
}

static int same(const matrix *a, const matrix *b) {
    return a->rows == b->rows && a->width == b->width;
}

/* The call of a step, or why there is none. buffers: NULL where only support is asked for. */
static const char *read_step(const hal_plan *plan, hal_buffer *const *buffers, uint32_t step, call *out) {
    const hal_step *s = plan->steps + step;
    const char *op = s->op < plan->n_ops ? plan->ops[s->op].name : "", *fault = NULL;
    memset(out, 0, sizeof *out);
    if (!strcmp(op, "rms_norm"))
        out->run = rms_norm;
    else if (!strcmp(op, "swiglu"))
        out->run = swiglu;
    else if (!strcmp(op, "add"))
        out->run = add;
    if (!out->run)
        return "simple has no such op";
    if (s->n_in != INPUTS || s->view >= plan->n_views || plan->n_views - s->view <= INPUTS)
        return "it takes two inputs";
    for (int i = 0; !fault && i <= INPUTS; i++)
        fault = read_view(plan, buffers, plan->views + s->view + i, out->m + i);
    if (fault)
        return fault;
    if (!same(out->m, out->m + 1))
        return "the output must have the first input's shape";
    if (out->run != rms_norm)
        return same(out->m, out->m + 2) ? NULL : "both inputs must have one shape";
    if (out->m[2].width != 1 || out->m->width % (uint64_t)out->m[2].rows)
        return "the norm's weights must be a list, as long as a row or a head";
    if (plan->ops[s->op].arg_size != sizeof(arg_rms_norm) || s->arg > plan->n_args ||
        plan->n_args - s->arg < sizeof(float))
        return "its arguments lie outside of the table";
    memcpy(&out->arg, plan->args + s->arg, sizeof out->arg);
    return NULL;
}

static int supports(hal_device *d, const hal_plan *plan, uint32_t step) {
    call unused;
    const char *fault = step < plan->n_steps ? read_step(plan, NULL, step, &unused) : "the plan has no such step";
    (void)d;
    return fault ? fail(HAL_E_UNSUPPORTED, fault) : 1;
}

static void release(hal_exec *e) {
    if (e)
        free(e->calls);
    free(e);
}

static int compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    hal_exec *e = calloc(1, sizeof *e);
    const char *fault = plan->step_buffer < plan->n_buffers ? NULL : "the plan has no step buffer";
    if (!e || !(e->calls = calloc(plan->n_steps + (size_t)1, sizeof *e->calls))) {
        release(e);
        return fail(HAL_E_MEMORY, "no memory for a plan");
    }
    for (uint32_t i = 0; !fault && i < plan->n_steps; i++)
        fault = read_step(plan, buffers, e->n = i, e->calls + i);
    if (fault) {
        release(e);
        return fail(HAL_E_UNSUPPORTED, fault);
    }
    e->n = plan->n_steps;
    e->block = buffers[plan->step_buffer];
    d->allocations++;
    *out = e;
    return 0;
}

static int run(hal_exec *e, const void *block, uint64_t size) {
    int32_t counts[HAL_COUNTS];
    if (size < sizeof counts || size > e->block->size)
        return fail(HAL_E_INVALID, "the step block does not fit its buffer");
    memcpy(e->block->data, block, size);
    memcpy(counts, block, sizeof counts);
    for (uint32_t i = 0; i < e->n; i++) {
        const matrix *m = e->calls[i].m;
        int32_t rows = m->count < 0 ? m->rows : counts[m->count];
        if (rows < 0 || rows > m->rows)
            return fail(HAL_E_INVALID, "the step has more rows than the plan was made for");
        e->calls[i].run(m, rows, e->calls[i].arg);
    }
    return 0;
}

static int wait_done(hal_exec *e, uint32_t timeout_ms) {
    (void)e, (void)timeout_ms; /* run() has done it all */
    return 0;
}

/* --- device and buffers */

static int one(void) {
    return 1;
}

static int open_device(int index, const hal_options *options, hal_device **out) {
    (void)options;
    if (index)
        return fail(HAL_E_INVALID, "there is one such device alone, 0");
    *out = calloc(1, sizeof **out);
    return *out ? 0 : fail(HAL_E_MEMORY, "no memory for a device");
}

static void close_device(hal_device *d) {
    free(d);
}

static void info(hal_device *d, hal_info *out) {
    *out = (hal_info){.name = "an example",
                      .variant = "plain C",
                      .threads = 1,
                      .memory_total = (uint64_t)1 << 34,
                      .memory_free = (uint64_t)1 << 34,
                      .allocations = d->allocations};
}

static int alloc_buffer(hal_device *d, const hal_bufdesc *desc, hal_buffer **out) {
    hal_buffer *b = malloc(sizeof *b);
    if (!b || desc->size >= SIZE_MAX || !(b->data = calloc(1, desc->size + 1))) {
        free(b);
        return fail(HAL_E_MEMORY, "no memory for a buffer");
    }
    b->size = desc->size;
    d->allocations++;
    *out = b;
    return 0;
}

static void free_buffer(hal_buffer *b) {
    if (b)
        free(b->data);
    free(b);
}

static int inside(const hal_buffer *b, uint64_t offset, uint64_t size) {
    return offset <= b->size && size <= b->size - offset ? 0 : fail(HAL_E_INVALID, "outside of the buffer");
}

static int write_buffer(hal_buffer *b, uint64_t offset, const void *from, uint64_t size) {
    int code = inside(b, offset, size);
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

HAL_EXPORT const hal_backend *hal_backend_entry(void) {
    static const hal_backend backend = {
        .hash = HAL_ABI_HASH,
        .name = "simple",
        .score = one,
        .count = one,
        .open = open_device,
        .close = close_device,
        .info = info,
        .alloc = alloc_buffer,
        .free = free_buffer,
        .write = write_buffer,
        .read = read_buffer,
        .supports = supports,
        .compile = compile,
        .run = run,
        .wait = wait_done,
        .release = release,
        .error = last_error,
    };
    return &backend;
}
