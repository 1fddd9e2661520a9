/*
 * BF16: the upper 16 bits of a float32, one number per block. Rounds to nearest even; NaN becomes quiet. Products
 * are summed in float32. Rows that are not whole blocks of bf16x2 are multiplied with float32 activations.
 */
#ifndef SATCHEL_QUANT_BF16_H
#define SATCHEL_QUANT_BF16_H

#include "bf16x2.h"
#include "f32.h"

typedef struct {
    uint16_t x;
} block_bf16;

_Static_assert(sizeof(block_bf16) == 2, "block_bf16 is one half");
#define SATCHEL_WEIGHT_bf16 30, 1, bf16x2 /* GGUF number, elements of a block, activations */

static inline void bf16_unpack(DEVICE const block_bf16 *b, THREAD float *out) {
    out[0] = bf16_to_f32(b->x);
}

static inline void bf16_quantize(const float *x, block_bf16 *out, int n_blocks) {
    int i;
    for (i = 0; i < n_blocks; i++)
        out[i].x = f32_to_bf16(x[i]);
}

static inline float bf16_dot(const block_bf16 *w, const block_bf16x2 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf(bf16_to_f32(w[i].x), bf16x2_at(a, i), sum);
    return sum;
}

static inline float bf16_dot_f32(const block_bf16 *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf(bf16_to_f32(w[i].x), a[i].x, sum);
    return sum;
}

#endif
