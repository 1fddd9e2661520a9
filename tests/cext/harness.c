/* harness.c: see harness.h. The wrapped allocators count; the linker sends every call of malloc and its kin here. */
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "formats.h"
#include "harness.h"
#include "types.h"

int passed, failed;

int check(int ok, const char *file, int line, const char *format, ...) {
    va_list args;
    if (ok) {
        passed++;
        return 1;
    }
    failed++;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return 0;
}

static const struct {
    uint32_t format;
    int block, bytes;
} formats[] = {
#define CPU_WEIGHT(stem, id, block, act) {id, block, (int)sizeof(block_##stem)},
#define CPU_ONLY_ACT(stem, id, block) {id, block, (int)sizeof(block_##stem)},
#include "types.inc"
#undef CPU_WEIGHT
#undef CPU_ONLY_ACT
    {I8, 1, 1},
    {I32, 1, 4},
};

int format_block(uint32_t format) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return formats[i].block;
    abort();
}

uint64_t format_bytes(uint32_t format, uint64_t elements) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return elements / (uint64_t)formats[i].block * (uint64_t)formats[i].bytes;
    abort();
}

/* A part of eight bits of an f16: its exponent and the first bits behind it. */
static uint8_t byte_of(uint16_t half) {
    return (uint8_t)(half >> 7 & 0x7F);
}

static void set_other_scales(uint32_t format, uint8_t *block, uint16_t d) {
    float wide = f16_to_f32(d);
    double number = wide;
    switch (format) {
    case TYPE_iq1_m: /* d in the upper four bits of four halves */
        for (int i = 0; i < 4; i++)
            block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (d >> (4 * i) & 15) << 4);
        break;
    case TYPE_mxfp4:
        block[0] = (uint8_t)(d & 0x7FFF ? 112 + (d >> 10 & 31) : 0);
        break;
    case TYPE_nvfp4: /* neighbours' exponents are the same, near, or, seldom, far from each other */
        for (int i = 0, apart = (d & 0xF8) == 0x88 ? 8 | (d >> 8 & 7) : (d & 3) * 5 / 3; i < 4; i++)
            block[i] = (uint8_t)(byte_of(d) ^ i ^ (i % 2 ? apart << 3 : 0));
        break;
    case TYPE_f64:
        memcpy(block, &number, 8);
        break;
    default:
        memcpy(block, &wide, 4);
    }
    for (int i = 4; i < 132; i++)
        if (format == TYPE_f8_e4m3 && (block[i] & 0x7F) == 0x7F)
            block[i] ^= 1;
        else if (format == TYPE_f8_e5m2 && (block[i] & 0x7C) == 0x7C)
            block[i] ^= 4;
}

void set_scales(uint32_t format, uint8_t *block, uint16_t d, uint16_t minimum) {
    switch (format) {
    case TYPE_q4_1:
    case TYPE_q5_1:
    case TYPE_q4_k:
    case TYPE_q5_k:
        memcpy(block + 2, &minimum, 2); /* fall through */
    case TYPE_q4_0:
    case TYPE_q5_0:
    case TYPE_q8_0:
    case TYPE_q1_0:
    case TYPE_q2_0:
    case TYPE_iq4_nl:
    case TYPE_iq4_xs:
    case TYPE_iq1_s:
    case TYPE_iq2_xxs:
    case TYPE_iq2_xs:
    case TYPE_iq2_s:
    case TYPE_iq3_xxs:
    case TYPE_iq3_s:
    case TYPE_f16:
    case TYPE_bf16:
        memcpy(block, &d, 2);
        break;
    case TYPE_q2_k:
    case TYPE_q3_k:
    case TYPE_q6_k:
    case TYPE_tq1_0:
    case TYPE_tq2_0:
        memcpy(block + format_bytes(format, (uint64_t)format_block(format)) - (format == TYPE_q2_k ? 4 : 2), &d, 2);
        if (format == TYPE_q2_k)
            memcpy(block + sizeof(block_q2_k) - 2, &minimum, 2);
        break;
    default:
        set_other_scales(format, block, d);
    }
}

static uint64_t operand_bytes(const operand *o) {
    uint64_t n = 1;
    for (int i = 0; i < o->ndim; i++)
        n *= (uint64_t)o->shape[i];
    return format_bytes(o->format, n);
}

void begin_plan(builder *b, uint64_t step_bytes) {
    memset(b, 0, sizeof *b);
    b->plan = (hal_plan){.steps = b->steps, .views = b->views, .buffers = b->buffers, .ops = b->ops, .args = b->args};
    add_buffer(b, HAL_STEP, step_bytes);
}

int add_buffer(builder *b, uint32_t usage, uint64_t size) {
    b->buffers[b->plan.n_buffers] = (hal_bufdesc){.size = size, .usage = usage};
    return (int)b->plan.n_buffers++;
}

void add_step(builder *b, const char *op, const void *arg, uint32_t arg_size, int n_in) {
    hal_plan *p = &b->plan;
    hal_op *o = b->ops + p->n_ops;
    snprintf(o->name, sizeof o->name, "%s", op);
    o->arg_size = arg_size;
    if (arg_size)
        memcpy(b->args + p->n_args, arg, arg_size);
    b->steps[p->n_steps++] = (hal_step){(uint16_t)p->n_ops++, (uint16_t)n_in, p->n_views, p->n_args};
    p->n_args += (arg_size + 7) / 8 * 8;
}

void add_view(builder *b, int buffer, uint64_t offset, int count, const operand *shape) {
    hal_view *v = b->views + b->plan.n_views++;
    *v = (hal_view){.buffer = (uint32_t)buffer,
                    .format = shape->format,
                    .offset = offset,
                    .count = count,
                    .ndim = (uint32_t)shape->ndim};
    for (int i = 0; i < 4; i++)
        v->shape[i] = i < shape->ndim ? shape->shape[i] : 1;
    v->stride = operand_bytes(shape) / (uint64_t)shape->shape[0];
    if (shape->packed) {
        v->format |= HAL_PACKED;
        v->stride = 0;
    }
}

/* Bytes of an operand's buffer on the device. */
static uint64_t buffer_bytes(const target *t, const operand *o) {
    return o->packed ? t->b->packed(t->device, o->format, 1, o->shape[0], o->shape[1]) : operand_bytes(o);
}

static int make_buffer(const target *t, const operand *o, uint32_t usage, void **copy, hal_buffer **out) {
    uint64_t size = buffer_bytes(t, o);
    hal_bufdesc desc = {.size = size, .usage = usage};
    int code;
    *copy = NULL;
    if (o->packed) {
        code = t->b->alloc(t->device, &desc, out);
        return code ? code : t->b->pack(*out, 0, o->format, 1, o->shape[0], o->shape[1], o->data);
    }
    if (usage == HAL_WEIGHT && t->b->wrap) {
        *copy = malloc(size);
        memcpy(*copy, o->data, size);
        return t->b->wrap(t->device, *copy, size, out);
    }
    code = t->b->alloc(t->device, &desc, out);
    return code || usage == HAL_OUT ? code : t->b->write(*out, 0, o->data, size);
}

int run_op(const target *t, const char *op, const void *arg, uint32_t arg_size, operand *out, const operand *in,
           int n_in) {
    builder b;
    hal_buffer *buffers[16] = {NULL};
    void *copies[16] = {NULL};
    hal_exec *e = NULL;
    hal_bufdesc block = {.size = 32, .usage = HAL_STEP};
    int32_t counts[8] = {0};
    int in_place = out->data == in[0].data, target_buffer = in_place ? 1 : n_in + 1, code;
    begin_plan(&b, 32);
    add_step(&b, op, arg, arg_size, n_in);
    add_view(&b, target_buffer, 0, -1, out);
    code = t->b->alloc(t->device, &block, &buffers[0]);
    for (int i = 0; i < n_in && !code; i++) {
        uint32_t usage = in_place && i == 0 ? HAL_STATE : HAL_WEIGHT;
        add_view(&b, add_buffer(&b, usage, buffer_bytes(t, in + i)), 0, -1, in + i);
        code = make_buffer(t, in + i, usage, &copies[i + 1], &buffers[i + 1]);
    }
    if (!in_place && !code) {
        add_buffer(&b, HAL_OUT, operand_bytes(out));
        code = make_buffer(t, out, HAL_OUT, &copies[0], &buffers[n_in + 1]);
    }
    if (!code && !(code = t->b->compile(t->device, &b.plan, buffers, &e)))
        code = t->b->run(e, counts, sizeof counts);
    if (!code)
        code = t->b->wait(e, UINT32_MAX);
    if (!code)
        code = t->b->read(buffers[target_buffer], 0, out->data, operand_bytes(out));
    t->b->release(e);
    for (int i = 0; i < 16; i++) {
        t->b->free(buffers[i]);
        free(copies[i]);
    }
    return code;
}

static uint64_t state = 1;

uint64_t random_bits(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int random_below(int n) {
    return (int)(random_bits() % (uint64_t)n);
}

float random_float(float scale) {
    return ((float)(random_bits() >> 40) * 0x1p-23f - 1) * scale;
}

float *random_floats(int n, float scale) {
    float *x = malloc(sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++)
        x[i] = random_float(scale);
    return x;
}

double nmse(const float *got, const double *want, int n) {
    double off = 0, power = 0;
    for (int i = 0; i < n; i++) {
        off += (got[i] - want[i]) * (got[i] - want[i]);
        power += want[i] * want[i];
    }
    return power > 0 ? off / power : off;
}

/* --- the counted allocators */

long allocations;

#if !defined(COUNTS_NO_CALLS)
static atomic_long counted;

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void *__real_aligned_alloc(size_t, size_t);
void *__wrap_malloc(size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_realloc(void *, size_t);
void *__wrap_aligned_alloc(size_t, size_t);

static void count_one(void) {
    allocations = atomic_fetch_add(&counted, 1) + 1;
}

void *__wrap_malloc(size_t n) {
    count_one();
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    count_one();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    count_one();
    return __real_realloc(p, n);
}

#if !defined(_WIN32)
void *__wrap_aligned_alloc(size_t align, size_t n) {
    count_one();
    return __real_aligned_alloc(align, n);
}
#endif
#endif

/* An allocation that is too large must fail, as it does without a sanitizer, not end the program. */
HAL_EXPORT const char *__asan_default_options(void);
HAL_EXPORT const char *__tsan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}
