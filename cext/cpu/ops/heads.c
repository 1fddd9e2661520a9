/* heads.c: slices (take) and concatenates (concat) float32 heads (T, H, D) along D. Rows may have any stride; heads are dense
 * within a row.
 */
#include <string.h>

#include "cpu.h"

static const char *check_take(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1;
    const arg_take *a = c->arg;
    if (c->n_in != 1 || !cpu_is(x, F32, 3) || !cpu_is(y, F32, 3) || x->shape[0] != y->shape[0] ||
        x->shape[1] != y->shape[1])
        return "it takes x f32 (T, H, D) and gives f32 (T, H, size)";
    return a->start >= 0 && a->size == y->shape[2] && a->start <= x->shape[2] - a->size
               ? NULL
               : "start and size must lie within x's heads, and size be the output's width";
}

static void run_take(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_take *a = c->arg;
    int64_t d = c->v[1].shape[2];
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < c->v[0].shape[1]; h++)
            memcpy(cpu_f32(c->v, from) + (int64_t)h * a->size, cpu_f32(c->v + 1, from) + h * d + a->start,
                   sizeof(float) * (size_t)a->size);
}

static const char *check_concat(const cpu_call *c) {
    const cpu_view *y = c->v, *a = c->v + 1, *b = c->v + 2;
    if (c->n_in != 2 || !cpu_is(a, F32, 3) || !cpu_is(b, F32, 3) || !cpu_is(y, F32, 3))
        return "it takes a f32 (T, H, A) and b f32 (T, H, B), and gives f32";
    if (a->shape[0] != b->shape[0] || a->shape[0] != y->shape[0] || a->shape[1] != y->shape[1] ||
        (b->shape[1] != a->shape[1] && b->shape[1] != 1))
        return "a, b and output differ in tokens or heads";
    return (int64_t)a->shape[2] + b->shape[2] == y->shape[2] ? NULL : "the output must be as wide as both";
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

CPU_KERNEL(take) = {check_take, NULL, cpu_by_row, run_take};
CPU_KERNEL(concat) = {check_concat, NULL, cpu_by_row, run_concat};
