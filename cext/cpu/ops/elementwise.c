/* elementwise.c: swiglu, swiglu_limited, gelu, soft_cap, add, mul: float32 (T, ...) rows of any stride. The second
 * operand of add and mul broadcasts to the first, as in numpy. */
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

/* How b broadcasts to rows of a: the last three dimensions of a below its first, and how many numbers of b lie between
 * neighbours in each; 0: they share one. */
typedef struct {
    int64_t size[3], step[3];
} broadcast;

/* Fills *out; 0 where b does not broadcast to a, or has fewer dimensions than a and is not dense. What it finds of the
 * dimensions below the first stays as it was checked: a run changes first sizes alone. */
static int broadcast_of(const cpu_view *a, const cpu_view *b, broadcast *out) {
    int lead = (int)a->ndim - (int)b->ndim;
    int64_t numbers = 1;
    if (lead < 0 || (lead && b->shape[0] > 1 && b->stride != b->width * sizeof(float)))
        return 0;
    *out = (broadcast){{1, 1, 1}, {0, 0, 0}};
    for (int d = (int)a->ndim - 1, i = 2; d > 0; d--, i--) {
        int32_t size = d < lead ? 1 : b->shape[d - lead];
        if (size != 1 && size != a->shape[d])
            return 0;
        out->size[i] = a->shape[d];
        out->step[i] = size == 1 ? 0 : numbers;
        numbers *= size;
    }
    if (numbers == 1 || numbers == (int64_t)a->width)
        *out = (broadcast){{1, 1, (int64_t)a->width}, {0, 0, numbers > 1}};
    return 1;
}

/* Whether b has a row for each of a's, instead of one for all. */
static int has_rows(const cpu_view *a, const cpu_view *b) {
    return a->ndim == b->ndim && b->shape[0] > 1;
}

static const char *check_pair(const cpu_call *c) {
    const cpu_view *a = c->v + 1, *b = c->v + 2;
    broadcast found;
    if (c->n_in != 2)
        return "it takes two inputs";
    if (c->v[0].format != F32 || a->format != F32 || b->format != F32)
        return "inputs and output must be f32";
    if (!cpu_same_shape(c->v, a))
        return "the output must have the first input's shape";
    return broadcast_of(a, b, &found) && (!has_rows(a, b) || b->shape[0] == a->shape[0])
               ? NULL
               : "the second input must broadcast to the first's shape";
}

static inline void run_numbers(const float *a, const float *b, float *y, int64_t n, int64_t step, int multiply) {
    if (step)
        for (int64_t i = 0; i < n; i++)
            y[i] = multiply ? a[i] * b[i] : a[i] + b[i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = multiply ? a[i] * *b : a[i] + *b;
}

static inline void run_pair(const cpu_call *c, int64_t from, int64_t to, int multiply) {
    const cpu_view *a = c->v + 1, *b = c->v + 2;
    int rows = has_rows(a, b);
    broadcast s;
    broadcast_of(a, b, &s);
    for (; from < to; from++) {
        const float *x = cpu_f32(a, from), *other = cpu_f32(b, rows ? from : 0);
        float *y = cpu_f32(c->v, from);
        for (int64_t i = 0; i < s.size[0]; i++)
            for (int64_t j = 0; j < s.size[1]; j++, x += s.size[2], y += s.size[2])
                run_numbers(x, other + i * s.step[0] + j * s.step[1], y, s.size[2], s.step[2], multiply);
    }
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
