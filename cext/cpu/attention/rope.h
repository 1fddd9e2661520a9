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

#endif
