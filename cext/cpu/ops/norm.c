/* norm.c: rms_norm and layer_norm of float32 x (T, D) or (T, H, D) over the last dimension, with weight w (D); layer_norm may
 * have a bias (D).
 */
#include "cpu.h"
#include "elementwise.h"

static const char *check(const cpu_call *c, int most) {
    const cpu_view *y = c->v, *x = c->v + 1;
    if (c->n_in < 2 || c->n_in > most)
        return most == 2 ? "it takes x and w" : "it takes x, w and maybe a bias";
    if (y->format != F32 || x->format != F32 || !cpu_same_shape(x, y) || x->ndim < 2)
        return "x and output must be f32, and the output of x's shape";
    for (int i = 2; i <= c->n_in; i++)
        if (c->v[i].format != F32 || c->v[i].ndim != 1 || c->v[i].stride != sizeof(float) ||
            c->v[i].shape[0] != x->shape[x->ndim - 1])
            return "w must be f32 and have the length of x's last dimension";
    return NULL;
}

static const char *check_rms(const cpu_call *c) {
    return check(c, 2);
}

static const char *check_layer(const cpu_call *c) {
    return check(c, 3);
}

static void run_rms(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *x = c->v + 1;
    const float *w = cpu_f32(c->v + 2, 0);
    float eps = ((const arg_rms_norm *)c->arg)->eps;
    int d = x->shape[x->ndim - 1], heads = (int)(x->width / (uint64_t)d);
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < heads; h++)
            row_rms_norm(cpu_f32(x, from) + (int64_t)h * d, w, eps, cpu_f32(y, from) + (int64_t)h * d, d);
}

static void run_layer(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *x = c->v + 1;
    const float *w = cpu_f32(c->v + 2, 0), *b = c->n_in == 3 ? cpu_f32(c->v + 3, 0) : NULL;
    float eps = ((const arg_layer_norm *)c->arg)->eps;
    int d = x->shape[x->ndim - 1], heads = (int)(x->width / (uint64_t)d);
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < heads; h++)
            row_layer_norm(cpu_f32(x, from) + (int64_t)h * d, w, b, eps, cpu_f32(y, from) + (int64_t)h * d, d);
}

CPU_KERNEL(rms_norm) = {check_rms, NULL, cpu_by_row, run_rms};
CPU_KERNEL(layer_norm) = {check_layer, NULL, cpu_by_row, run_layer};
