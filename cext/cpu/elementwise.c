/* elementwise.c: swiglu, swiglu_limited, gelu, soft_cap, add, mul: float32 (T, ...) rows of any stride. The second operand
 * of add and mul may be one row. */
#include "cpu.h"
#include "elementwise.h"

static void run_limited(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_swiglu_limited *a = c->arg;
    (void)thread;
    for (; from < to; from++)
        row_limited(cpu_f32(c->v + 1, from), cpu_f32(c->v + 2, from), cpu_f32(c->v, from), (int)c->v[0].width, a->limit,
                    a->alpha);
}

static const char *check_swiglu(const cpu_call *c) {
    if (c->n_in != 2)
        return "it takes a gate and an up";
    for (int i = 0; i < 3; i++)
        if (c->v[i].format != F32 || !cpu_same_shape(c->v, c->v + i))
            return "gate, up and output must be f32 of one shape";
    return NULL;
}

static void run_swiglu(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    for (; from < to; from++)
        row_swiglu(cpu_f32(c->v + 1, from), cpu_f32(c->v + 2, from), cpu_f32(c->v, from), (int)c->v[0].width);
}

/* 0 where b has a's shape, 1 where it is one row for all, -1 otherwise. */
static int one_row(const cpu_view *a, const cpu_view *b) {
    if (cpu_same_shape(a, b))
        return 0;
    if (b->ndim == a->ndim)
        return b->shape[0] == 1 && b->width == a->width ? 1 : -1;
    return b->ndim + 1 == a->ndim && (uint64_t)b->shape[0] * b->width == a->width &&
                   b->stride == b->width * sizeof(float)
               ? 1
               : -1;
}

static const char *check_pair(const cpu_call *c) {
    if (c->n_in != 2)
        return "it takes two inputs";
    if (c->v[0].format != F32 || c->v[1].format != F32 || c->v[2].format != F32)
        return "inputs and output must be f32";
    if (!cpu_same_shape(c->v, c->v + 1))
        return "the output must have the first input's shape";
    return one_row(c->v + 1, c->v + 2) < 0 ? "the second input must have the first's shape or be one row of it" : NULL;
}

static inline void row_pair(const float *a, const float *b, float *y, int n, int multiply) {
    for (int i = 0; i < n; i++)
        y[i] = multiply ? a[i] * b[i] : a[i] + b[i];
}

/* Whether b is one row is told by its rank or size, which stay as they were checked: only the first sizes of a and of a
 * b of equal shape follow the run. */
static inline void run_pair(const cpu_call *c, int64_t from, int64_t to, int multiply) {
    const cpu_view *y = c->v, *a = c->v + 1, *b = c->v + 2;
    int shared = one_row(a, b);
    for (; from < to; from++)
        row_pair(cpu_f32(a, from), cpu_f32(b, shared ? 0 : from), cpu_f32(y, from), (int)y->width, multiply);
}

static void run_add(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_pair(c, from, to, 0);
}

static void run_mul(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_pair(c, from, to, 1);
}

static const char *check_one(const cpu_call *c) {
    if (c->n_in != 1)
        return "it takes x";
    if (c->v[0].format != F32 || c->v[1].format != F32 || !cpu_same_shape(c->v, c->v + 1))
        return "x and output must be f32 of one shape";
    return NULL;
}

static const char *check_gelu(const cpu_call *c) {
    int32_t style = ((const arg_gelu *)c->arg)->style;
    return style < 0 || style > 1 ? "style must be 0 or 1" : check_one(c);
}

static void run_gelu(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int n = (int)c->v[0].width, style = ((const arg_gelu *)c->arg)->style;
    (void)thread;
    for (; from < to; from++) {
        const float *x = cpu_f32(c->v + 1, from);
        float *y = cpu_f32(c->v, from);
        for (int i = 0; i < n; i += LANES) {
            vf a = vf_load_most(x + i, n - i);
            vf_store_most(y + i, style ? vf_gelu_erf(a) : vf_gelu_tanh(a), n - i);
        }
    }
}

static const char *check_cap(const cpu_call *c) {
    return ((const arg_soft_cap *)c->arg)->cap > 0 ? check_one(c) : "cap must be above 0";
}

static void run_cap(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int n = (int)c->v[0].width;
    float cap = ((const arg_soft_cap *)c->arg)->cap;
    (void)thread;
    for (; from < to; from++) {
        const float *x = cpu_f32(c->v + 1, from);
        float *y = cpu_f32(c->v, from);
        for (int i = 0; i < n; i += LANES)
            vf_store_most(y + i, vf_tanh(vf_load_most(x + i, n - i) / vf_set(cap)) * vf_set(cap), n - i);
    }
}

CPU_KERNEL(gelu) = {check_gelu, NULL, cpu_by_row, run_gelu};
CPU_KERNEL(soft_cap) = {check_cap, NULL, cpu_by_row, run_cap};
CPU_KERNEL(swiglu) = {check_swiglu, NULL, cpu_by_row, run_swiglu};
CPU_KERNEL(swiglu_limited) = {check_swiglu, NULL, cpu_by_row, run_limited};
CPU_KERNEL(add) = {check_pair, NULL, cpu_by_row, run_add};
CPU_KERNEL(mul) = {check_pair, NULL, cpu_by_row, run_mul};
