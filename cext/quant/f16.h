/*
 * F16: one IEEE binary16 number per block, stored as its bits. Rounds to nearest even; NaN becomes quiet, overflow
 * infinity. Products are summed in float32. Rows that are not whole blocks of bf16x2 are multiplied with float32
 * activations.
 */
#ifndef SATCHEL_QUANT_F16_H
#define SATCHEL_QUANT_F16_H

#include "bf16x2.h"
#include "f32.h"

typedef struct {
    uint16_t x;
} block_f16;

_Static_assert(sizeof(block_f16) == 2, "block_f16 is one half");
#define SPLIT_HALVES_f16 1              /* in a panel: the two numbers of a word lie in two planes */
#define SATCHEL_WEIGHT_f16 1, 1, bf16x2 /* GGUF number, elements of a block, activations */

static inline void f16_unpack(DEVICE const block_f16 *b, THREAD float *out) {
    out[0] = f16_to_f32(b->x);
}

static inline void f16_quantize(const float *x, block_f16 *out, int n_blocks) {
    int i;
    for (i = 0; i < n_blocks; i++)
        out[i].x = f32_to_f16(x[i]);
}

static inline float f16_dot(const block_f16 *w, const block_bf16x2 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf(f16_to_f32(w[i].x), bf16x2_at(a, i), sum);
    return sum;
}

static inline float f16_dot_f32(const block_f16 *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int i;
    for (i = 0; i < n_blocks; i++)
        sum = fmaf(f16_to_f32(w[i].x), a[i].x, sum);
    return sum;
}

#endif
