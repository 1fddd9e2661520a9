/* heads.c: slices (take), concatenates (concat) and widens (pad) float32 heads (T, H, D) along D. Rows may have any stride; heads are dense
 * within a row.
 */
#include <string.h>

#include "cpu.h"

static void run_take(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_take *a = c->arg;
    int64_t d = c->v[1].shape[2];
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < c->v[0].shape[1]; h++)
            memcpy(cpu_f32(c->v, from) + (int64_t)h * a->size, cpu_f32(c->v + 1, from) + h * d + a->start,
                   sizeof(float) * (size_t)a->size);
}

static void run_concat(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int64_t a = c->v[1].shape[2], b = c->v[2].shape[2];
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < c->v[0].shape[1]; h++) {
            float *y = cpu_f32(c->v, from) + h * (a + b);
            memcpy(y, cpu_f32(c->v + 1, from) + h * a, sizeof(float) * (size_t)a);
            memcpy(y + a, cpu_f32(c->v + 2, from) + (c->v[2].shape[1] == 1 ? 0 : h * b), sizeof(float) * (size_t)b);
        }
}

CPU_KERNEL(take) = {NULL, NULL, cpu_by_row, run_take};
CPU_KERNEL(concat) = {NULL, NULL, cpu_by_row, run_concat};

static void run_pad(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_pad *a = c->arg;
    const cpu_view *y = c->v, *x = c->v + 1;
    size_t n = (size_t)x->shape[x->ndim - 1], wide = (size_t)y->shape[y->ndim - 1];
    (void)thread;
    for (; from < to; from++)
        for (size_t h = 0; h < x->width / n; h++) {
            float *out = cpu_f32(y, from) + h * wide;
            memset(out, 0, sizeof(float) * wide);
            memcpy(out + a->before, cpu_f32(x, from) + h * n, sizeof(float) * n);
        }
}

CPU_KERNEL(pad) = {NULL, NULL, cpu_by_row, run_pad};
