/*
 * NVFP4: 64 numbers in four groups of 16, four-bit floats (E2M1) under eight-bit float scales (E4M3 without sign):
 * x = scale / 2 * table[q] with mxfp4's table. A scale's top bit is not looked at, but the scale 0x7F is 0.
 *
 * The eight bytes of a group hold its first eight numbers in their low nibbles, the others in the high. Nothing
 * rounds in decoding. In a dot product the sums of two groups, scales and all, are exact and are added, which rounds
 * where the scales are far apart; the sum, times the activations' scale, goes to that of the row.
 */
#ifndef SATCHEL_QUANT_NVFP4_H
#define SATCHEL_QUANT_NVFP4_H

#include "mxfp4.h"

typedef struct {
    uint8_t scales[4];
    uint8_t qs[32];
} block_nvfp4;

_Static_assert(sizeof(block_nvfp4) == 36, "block_nvfp4 is 4 bytes of scales and 32 of codes");
#define SATCHEL_WEIGHT_nvfp4 40, 64, a8_32 /* GGUF number, elements of a block, activations */

/* Half of an E4M3 scale: three fraction bits; the least normal exponent is -6; exponent field 0 is subnormal. */
static inline float nvfp4_scale(uint8_t code) {
    uint32_t exponent = code >> 3 & 15, fraction = code & 7;
    if (code == 0x7F)
        return 0.0f;
    if (exponent == 0)
        return (float)fraction * f32_from_bits(0x3A800000u); /* 2^-10 */
    return f32_from_bits((exponent + 119u) << 23 | fraction << 20);
}

/* Code i (0..15) of group g (0..3). */
static inline int nvfp4_code(DEVICE const block_nvfp4 *b, int g, int i) {
    return e2m1_table((b->qs[8 * g + i % 8] >> (4 * (i / 8))) & 15);
}

/* Numbers 32 g .. 32 g + 31. */
static inline void nvfp4_part(DEVICE const block_nvfp4 *b, int g, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = nvfp4_scale(b->scales[2 * g + i / 16]) * (float)nvfp4_code(b, 2 * g + i / 16, i % 16);
}

static inline void nvfp4_unpack(DEVICE const block_nvfp4 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 2; g++)
        nvfp4_part(b, g, out + 32 * g);
}

/* The sum of the 16 products of group g with its codes of x, under the group's scale: exact. */
static inline float nvfp4_group_sum(const block_nvfp4 *w, int g, const block_a8_32 *x) {
    int32_t isum = 0;
    int i;
    for (i = 0; i < 16; i++)
        isum += nvfp4_code(w, g, i) * x->qs[16 * (g % 2) + i];
    return (float)isum * nvfp4_scale(w->scales[g]);
}

static inline float nvfp4_dot(const block_nvfp4 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, g;
    for (n = 0; n < n_blocks; n++)
        for (g = 0; g < 4; g += 2) {
            const block_a8_32 *x = a + 2 * n + g / 2;
            sum = fmaf(nvfp4_group_sum(w + n, g, x) + nvfp4_group_sum(w + n, g + 1, x), x->d, sum);
        }
    return sum;
}

#endif
