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

static broadcast broadcast_of(const cpu_view *a, const cpu_view *b) {
    broadcast out = {{1, 1, 1}, {0, 0, 0}};
    int lead = (int)a->ndim - (int)b->ndim;
    int64_t numbers = 1;
    for (int d = (int)a->ndim - 1, i = 2; d > 0; d--, i--) {
        int32_t size = d < lead ? 1 : b->shape[d - lead];
        out.size[i] = a->shape[d];
        out.step[i] = size == 1 ? 0 : numbers;
        numbers *= size;
    }
    if (numbers == 1 || numbers == (int64_t)a->width)
        out = (broadcast){{1, 1, (int64_t)a->width}, {0, 0, numbers > 1}};
    return out;
}

/* Whether b has a row for each of a's, instead of one for all. */
static int has_rows(const cpu_view *a, const cpu_view *b) {
    return a->ndim == b->ndim && b->shape[0] > 1;
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
    broadcast s = broadcast_of(a, b);
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

CPU_KERNEL(gelu) = {NULL, NULL, cpu_by_row, run_gelu};
CPU_KERNEL(soft_cap) = {NULL, NULL, cpu_by_row, run_cap};
CPU_KERNEL(swiglu) = {NULL, NULL, cpu_by_row, run_swiglu};
CPU_KERNEL(swiglu_limited) = {NULL, NULL, cpu_by_row, run_limited};
CPU_KERNEL(add) = {NULL, NULL, cpu_by_row, run_add};
CPU_KERNEL(mul) = {NULL, NULL, cpu_by_row, run_mul};
