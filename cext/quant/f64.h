/*
 * F64: one little-endian float64 per block. As a weight it is the nearest float32 (ties to even); its products are
 * summed in float32.
 */
#ifndef SATCHEL_QUANT_F64_H
#define SATCHEL_QUANT_F64_H

#include "f32.h"

typedef struct {
    double x;
} block_f64;

_Static_assert(sizeof(block_f64) == 8, "block_f64 is one double");
#define SATCHEL_WEIGHT_f64 28, 1, f32 /* GGUF number, elements of a block, activations */

static inline void f64_unpack(DEVICE const block_f64 *b, THREAD float *out) {
    double x;
    memcpy(&x, b, sizeof x);
    out[0] = (float)x;
}

static inline float f64_dot(const block_f64 *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf((float)w[i].x, a[i].x, sum);
    return sum;
}

#endif
