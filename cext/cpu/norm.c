/* norm.c: rms_norm of float32 x (T, D) or (T, H, D) by w (D), each last dimension a row of its own. */
#include "cpu.h"
#include "elementwise.h"

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1, *w = c->v + 2;
    if (c->n_in != 2)
        return "it takes x and w";
    if (y->format != F32 || x->format != F32 || w->format != F32 || !cpu_same_shape(x, y))
        return "x, w and output must be f32, and the output of x's shape";
    if (x->ndim < 2 || w->ndim != 1 || w->stride != sizeof(float) || w->shape[0] != x->shape[x->ndim - 1])
        return "w must have the length of x's last dimension";
    return NULL;
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *x = c->v + 1;
    const float *w = cpu_f32(c->v + 2, 0);
    float eps = ((const arg_rms_norm *)c->arg)->eps;
    int d = x->shape[x->ndim - 1], heads = (int)(x->width / (uint64_t)d);
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < heads; h++)
            row_rms_norm(cpu_f32(x, from) + (int64_t)h * d, w, eps, cpu_f32(y, from) + (int64_t)h * d, d);
}

CPU_KERNEL(rms_norm) = {check, NULL, cpu_by_row, run};
