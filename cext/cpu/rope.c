/* rope.c: rotary positions on float32 x (T, H, D): the first n_rot numbers of each head, by pos (T) * freq (n_rot / 2).
 *
 * The sines and cosines of a token are made once and serve all of its heads; they lie in the thread's scratch.
 */
#include <math.h>

#include "cpu.h"
#include "simd.h"

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1, *pos = c->v + 2, *freq = c->v + 3;
    const arg_rope *a = c->arg;
    if (c->n_in != 3)
        return "it takes x, pos and freq";
    if (!cpu_is(x, F32, 3) || !cpu_is(y, F32, 3) || !cpu_same_shape(x, y))
        return "x and output must be f32 (T, H, D)";
    if (!cpu_is(pos, I32, 1) || pos->shape[0] != x->shape[0])
        return "pos must be i32 (T)";
    if (a->n_rot < 2 || a->n_rot % 2 || a->n_rot > x->shape[2])
        return "n_rot must be even and no more than D";
    if (!cpu_is(freq, F32, 1) || freq->stride != sizeof(float) || freq->shape[0] != a->n_rot / 2)
        return "freq must be f32 (n_rot / 2)";
    return a->style == HAL_ROPE_INTERLEAVED || a->style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

static uint64_t scratch(const cpu_call *c) {
    return sizeof(float) * (uint64_t)((const arg_rope *)c->arg)->n_rot;
}

static void turn_neighbours(const float *x, float *y, const float *cosine, const float *sine, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosine[i] - b * sine[i];
        y[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
}

static void turn_halves(const float *x, float *y, const float *cosine, const float *sine, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * cosine[i] - b * sine[i];
        y[i + half] = a * sine[i] + b * cosine[i];
    }
}

static void turn_token(const cpu_call *c, int64_t t, float *cosine) {
    const arg_rope *a = c->arg;
    const float *freq = cpu_f32(c->v + 3, 0), *x = cpu_f32(c->v + 1, t);
    int half = a->n_rot / 2, heads = c->v[0].shape[1], d = c->v[0].shape[2];
    float *sine = cosine + half, *y = cpu_f32(c->v, t), pos = (float)cpu_i32(c->v + 2, t);
    for (int i = 0; i < half; i++) {
        float angle = pos * freq[i];
        cosine[i] = cosf(angle) * a->scale;
        sine[i] = sinf(angle) * a->scale;
    }
    for (int h = 0; h < heads; h++, x += d, y += d) {
        (a->style == HAL_ROPE_HALVES ? turn_halves : turn_neighbours)(x, y, cosine, sine, half);
        if (x != y)
            memmove(y + 2 * half, x + 2 * half, sizeof(float) * (size_t)(d - 2 * half));
    }
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        turn_token(c, from, (float *)cpu_scratch(c, thread));
}

CPU_KERNEL(rope) = {check, scratch, cpu_by_row, run};
