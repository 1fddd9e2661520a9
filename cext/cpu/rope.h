/* rope.h: one head turned by a row of a rope table: n_rot / 2 cosines, then as many sines. */
#ifndef SATCHEL_CPU_ROPE_H
#define SATCHEL_CPU_ROPE_H

#include <string.h>

#include "cpu.h"

static inline void turn_neighbours(const float *x, float *y, const float *turns, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = turns[i], s = turns[half + i];
        y[2 * i] = a * c - b * s;
        y[2 * i + 1] = a * s + b * c;
    }
}

static inline void turn_halves(const float *x, float *y, const float *turns, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = turns[i], s = turns[half + i];
        y[i] = a * c - b * s;
        y[i + half] = a * s + b * c;
    }
}

/* y = x (d numbers), the first n_rot of them turned; y may be x. */
static inline void turn_head(int32_t style, const float *x, float *y, int d, const float *turns, int n_rot) {
    (style == HAL_ROPE_HALVES ? turn_halves : turn_neighbours)(x, y, turns, n_rot / 2);
    if (x != y)
        memcpy(y + n_rot, x + n_rot, sizeof(float) * (size_t)(d - n_rot));
}

/* What is wrong with turns for x (T, H, D), or NULL. */
static inline const char *check_turns(const cpu_view *x, const cpu_view *turns, int32_t style) {
    if (!cpu_is(x, F32, 3) || !cpu_is(turns, F32, 2) || turns->shape[0] != x->shape[0])
        return "x must be f32 (T, H, D) and turns f32 (T, n_rot)";
    if (turns->shape[1] < 2 || turns->shape[1] % 2 || turns->shape[1] > x->shape[2])
        return "n_rot must be even and no more than D";
    return style == HAL_ROPE_INTERLEAVED || style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

#endif
