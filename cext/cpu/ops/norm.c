/* norm.c: rms_norm and layer_norm of float32 x (T, D) or (T, H, D) over the last dimension, with weight w (D); layer_norm may
 * have a bias (D).
 */
#include "cpu.h"
#include "elementwise.h"

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

CPU_KERNEL(rms_norm) = {NULL, NULL, cpu_by_row, run_rms};
CPU_KERNEL(layer_norm) = {NULL, NULL, cpu_by_row, run_layer};
