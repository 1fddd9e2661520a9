/* rope.c: RoPE. rope_table computes the cosines and sines of a step's positions once; rope rotates float32 heads (T, H, D) by
 * them. position_scale computes a factor per position (Llama 4's temperature tuning).
 */
#include <math.h>

#include "rope.h"

static const char *check_table(const cpu_call *c) {
    const cpu_view *y = c->v, *pos = c->v + 1, *freq = c->v + 2;
    if (c->n_in != 2)
        return "it takes pos and freq";
    if (!cpu_is(pos, I32, 1) || !cpu_is(freq, F32, 1) || freq->stride != sizeof(float))
        return "pos must be i32 (T) and freq f32 (N)";
    if (!cpu_is(y, F32, 2) || y->shape[0] != pos->shape[0] || y->shape[1] != 2 * (int64_t)freq->shape[0])
        return "the output must be f32 (T, 2 N)";
    return NULL;
}

/* A sine costs about twenty times as much as an element of other ops. */
static cpu_split split_table(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], 20 * (int64_t)c->v[0].width);
}

static void run_table(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const float *freq = cpu_f32(c->v + 2, 0);
    float scale = ((const arg_rope_table *)c->arg)->scale;
    int n = c->v[2].shape[0];
    (void)thread;
    for (; from < to; from++) {
        float *y = cpu_f32(c->v, from), pos = (float)cpu_i32(c->v + 1, from);
        for (int i = 0; i < n; i++) {
            y[i] = cosf(pos * freq[i]) * scale;
            y[n + i] = sinf(pos * freq[i]) * scale;
        }
    }
}

static const char *check(const cpu_call *c) {
    const arg_rope *a = c->arg;
    if (c->n_in != 2)
        return "it takes x and cos_sin";
    if (c->v[0].format != F32 || !cpu_same_shape(c->v, c->v + 1))
        return "the output must be f32 with x's shape";
    return check_cos_sin(c->v + 1, c->v + 2, a->style);
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

static const char *check_scale(const cpu_call *c) {
    if (c->n_in != 1 || !cpu_is(c->v + 1, I32, 1) || !cpu_is(c->v, F32, 2) || c->v->shape[1] != 1 ||
        c->v->shape[0] != c->v[1].shape[0])
        return "it takes pos i32 (T) and gives f32 (T, 1)";
    return ((const arg_position_scale *)c->arg)->step > 0 ? NULL : "step must be above 0";
}

static void run_scale(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_position_scale *a = c->arg;
    (void)thread;
    for (; from < to; from++)
        *cpu_f32(c->v, from) = 1 + a->slope * log1pf(floorf(((float)cpu_i32(c->v + 1, from) + 1) / (float)a->step));
}

CPU_KERNEL(position_scale) = {check_scale, NULL, cpu_by_row, run_scale};
CPU_KERNEL(rope_table) = {check_table, NULL, split_table, run_table};
CPU_KERNEL(rope) = {check, NULL, cpu_by_row, run};
