/*
 * FP8 (an extension of ours): the eight-bit float E4M3 alone, one element per block and no scale, as caches of keys and
 * values keep it. Bias 7, no infinity: 0x7F and 0xFF are NaN, 448 is the largest number. A finite number beyond it
 * becomes 448, and what is not finite NaN. Never a weight of a product, so there is no dot.
 */
#ifndef SATCHEL_QUANT_FP8_H
#define SATCHEL_QUANT_FP8_H

#include "f8_e4m3.h"

typedef struct {
    uint8_t x;
} block_fp8;

_Static_assert(sizeof(block_fp8) == 1, "block_fp8 is one byte");
#define SATCHEL_ACTIVATION_fp8 1008, 1 /* our number, elements of a block */

static inline void fp8_unpack(DEVICE const block_fp8 *b, THREAD float *out) {
    out[0] = f8_e4m3_value(b->x);
}

/* Rounds to the nearest code, ties to even, branch-free. Below 2^-6 values are multiples of 2^-9: adding 2^14 leaves the
 * code in the low bits. Above, the code is a float32 rounded to three fraction bits, with another exponent bias. */
static inline uint8_t fp8_of(float x) {
    uint32_t bits = f32_bits(x), size = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
    uint32_t small = f32_bits(f32_from_bits(size) + 16384.0f) - 0x46800000u;
    uint32_t code = (size + 0x7FFFFu + (size >> 20 & 1u)) >> 20;
    code = size < 0x3C800000u ? small : code - 960u; /* (127 - 7) * 8 */
    code = size > 0x43E00000u ? 0x7Eu : code;
    code = size >= 0x7F800000u ? 0x7Fu : code;
    return (uint8_t)(sign | code);
}

static inline void fp8_quantize(const float *x, block_fp8 *out, int n) {
    int i;
    for (i = 0; i < n; i++)
        out[i].x = fp8_of(x[i]);
}

#endif
