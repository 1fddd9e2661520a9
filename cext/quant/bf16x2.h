/*
 * BF16X2: 32 numbers, each the sum of two bfloat16, 16 significant bits. An activation format: operand of f16 and
 * bf16 weights, whose product a bfloat16 unit computes as two products.
 *
 * The quantizer: high = x rounded to nearest even, low = x - high likewise. Two edge cases: an infinity or NaN is
 * stored in high, with low 0; if a finite x would round to infinity, both halves are truncated instead of rounded,
 * so that high + low stays finite. high + low is exact in float32.
 */
#ifndef SATCHEL_QUANT_BF16X2_H
#define SATCHEL_QUANT_BF16X2_H

#include <math.h>

#include "half.h"

typedef struct {
    uint16_t high[32];
    uint16_t low[32];
} block_bf16x2;

_Static_assert(sizeof(block_bf16x2) == 128, "block_bf16x2 is 64 halves");
#define SATCHEL_ACTIVATION_bf16x2 1216, 32 /* our number, elements of a block */

/* Branch-free, so that compilers vectorize it. */
static inline void bf16x2_quantize_block(const float *x, block_bf16x2 *out) {
    int i;
    for (i = 0; i < 32; i++) {
        uint32_t bits = f32_bits(x[i]), size = bits & 0x7FFFFFFFu;
        uint32_t finite = size < 0x7F800000u ? 0xFFFFFFFFu : 0u;
        uint32_t cut = size >= 0x7F7F8000u ? finite : 0u;
        uint32_t quiet = size > 0x7F800000u ? 0x400000u : 0u;
        uint32_t round = (0x7FFFu + ((bits >> 16) & 1u)) & ~cut & finite;
        uint32_t high = ((bits | quiet) + round) & 0xFFFF0000u;
        uint32_t rest = f32_bits(x[i] - f32_from_bits(high)) & finite;
        round = (0x7FFFu + ((rest >> 16) & 1u)) & ~cut;
        out->high[i] = (uint16_t)(high >> 16);
        out->low[i] = (uint16_t)((rest + round) >> 16);
    }
}

static inline void bf16x2_quantize(const float *x, block_bf16x2 *out, int n_blocks) {
    int i;
    for (i = 0; i < n_blocks; i++)
        bf16x2_quantize_block(x + 32 * i, out + i);
}

/* Number i of a row of blocks. */
static inline float bf16x2_at(const block_bf16x2 *b, int i) {
    return bf16_to_f32(b[i / 32].high[i % 32]) + bf16_to_f32(b[i / 32].low[i % 32]);
}

static inline void bf16x2_unpack(DEVICE const block_bf16x2 *b, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = bf16x2_at(b, i);
}

#endif
