/* rope.h: RoPE of one head by a row of the cos/sin table: n_rot / 2 cosines, then as many sines. */
#ifndef SATCHEL_CPU_ROPE_H
#define SATCHEL_CPU_ROPE_H

#include <string.h>

#include "cpu.h"

static inline void rope_interleaved(const float *x, float *y, const float *cos_sin, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cos_sin[i], s = cos_sin[half + i];
        y[2 * i] = a * c - b * s;
        y[2 * i + 1] = a * s + b * c;
    }
}

static inline void rope_halves(const float *x, float *y, const float *cos_sin, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[half + i];
        y[i] = a * c - b * s;
        y[i + half] = a * s + b * c;
    }
}

/* y = x (d elements) with the first n_rot rotated; y may be x. */
static inline void rope_head(int32_t style, const float *x, float *y, int d, const float *cos_sin, int n_rot) {
    (style == HAL_ROPE_HALVES ? rope_halves : rope_interleaved)(x, y, cos_sin, n_rot / 2);
    if (x != y)
        memcpy(y + n_rot, x + n_rot, sizeof(float) * (size_t)(d - n_rot));
}

/* Checks cos_sin for x (T, H, D): NULL, or what is wrong. */
static inline const char *check_cos_sin(const cpu_view *x, const cpu_view *cos_sin, int32_t style) {
    if (!cpu_is(x, F32, 3) || !cpu_is(cos_sin, F32, 2) || cos_sin->shape[0] != x->shape[0])
        return "x must be f32 (T, H, D) and cos_sin f32 (T, n_rot)";
    if (cos_sin->shape[1] < 2 || cos_sin->shape[1] % 2 || cos_sin->shape[1] > x->shape[2])
        return "n_rot must be even and no more than D";
    return style == HAL_ROPE_INTERLEAVED || style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

#endif
