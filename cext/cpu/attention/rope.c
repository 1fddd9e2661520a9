/* rope.c: RoPE. rope_table computes the cosines and sines of a step's positions once; rope rotates float32 heads (T, H, D) by
 * them. position_scale computes a factor per position (Llama 4's temperature tuning).
 */
#include "ops/functions.h"
#include "rope.h"

/* A sine costs about twenty times as much as an element of other ops. */
static cpu_split split_table(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], 20 * (int64_t)c->v[0].width);
}

static void run_table(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const float *restrict freq = cpu_f32(c->v + 2, 0);
    float scale = ((const arg_rope_table *)c->arg)->scale;
    int n = c->v[2].shape[0];
    (void)thread;
    for (; from < to; from++) {
        float *restrict cosines = cpu_f32(c->v, from), *restrict sines = cosines + n;
        float pos = (float)cpu_i32(c->v + 1, from);
        for (int i = 0; i < n; i++) {
            float sine, cosine;
            own_sin_cos(pos * freq[i], &sine, &cosine);
            cosines[i] = cosine * scale;
            sines[i] = sine * scale;
        }
    }
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int32_t style = ((const arg_rope *)c->arg)->style;
    int heads = c->v[0].shape[1], d = c->v[0].shape[2], n_rot = c->v[2].shape[1];
    (void)thread;
    for (; from < to; from++) {
        const float *x = cpu_f32(c->v + 1, from), *cos_sin = cpu_f32(c->v + 2, from);
        float *y = cpu_f32(c->v, from);
        for (int h = 0; h < heads; h++)
            rope_head(style, x + h * d, y + h * d, d, cos_sin, n_rot);
    }
}

static void run_scale(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_position_scale *a = c->arg;
    (void)thread;
    for (; from < to; from++)
        *cpu_f32(c->v, from) = 1 + a->slope * own_log1p(floorf(((float)cpu_i32(c->v + 1, from) + 1) / (float)a->step));
}

CPU_KERNEL(position_scale) = {NULL, NULL, cpu_by_row, run_scale};
CPU_KERNEL(rope_table) = {NULL, NULL, split_table, run_table};
CPU_KERNEL(rope) = {NULL, NULL, cpu_by_row, run};
