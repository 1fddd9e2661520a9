/*
 * F32: one little-endian float32 per block, no scale. The identity; it is here so that every format has its
 * header.
 */
#ifndef SATCHEL_QUANT_F32_H
#define SATCHEL_QUANT_F32_H

#include <math.h>

#include "half.h"

typedef struct {
    float x;
} block_f32;

_Static_assert(sizeof(block_f32) == 4, "block_f32 is one float");
#define SATCHEL_WEIGHT_f32 0, 1, f32 /* GGUF number, elements of a block, activations */

static inline void f32_unpack(DEVICE const block_f32 *b, THREAD float *out) {
    out[0] = b->x;
}

static inline float f32_dot(const block_f32 *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf(w[i].x, a[i].x, sum);
    return sum;
}

#endif
