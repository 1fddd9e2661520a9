/*
 * F8_E5M2 (an extension of ours): 128 codes of the eight-bit float E5M2 under one float32 scale, x = d * value(q), as
 * FP8 checkpoints keep their weights. A code is the upper byte of an f16, infinities and NaN included. A code is a
 * bfloat16 exactly: with bf16x2 a block's products are summed in float32 before its scale. Products with float32 are
 * those of decoded numbers, summed in runs of 64.
 */
#ifndef SATCHEL_QUANT_F8_E5M2_H
#define SATCHEL_QUANT_F8_E5M2_H

#include "bf16x2.h"
#include "f32.h"

typedef struct {
    float d;
    uint8_t qs[128];
} block_f8_e5m2;

_Static_assert(sizeof(block_f8_e5m2) == 132, "block_f8_e5m2 is a float and 128 bytes");
#define SATCHEL_WEIGHT_f8_e5m2 2002, 128, bf16x2 /* our number, elements of a block, activations */

static inline float f8_e5m2_value(uint8_t q) {
    return f16_to_f32((uint16_t)(q << 8));
}

/* Numbers 32 g .. 32 g + 31. */
static inline void f8_e5m2_part(DEVICE const block_f8_e5m2 *b, int g, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = b->d * f8_e5m2_value(b->qs[32 * g + i]);
}

static inline void f8_e5m2_unpack(DEVICE const block_f8_e5m2 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 4; g++)
        f8_e5m2_part(b, g, out + 32 * g);
}

static inline float f8_e5m2_dot(const block_f8_e5m2 *w, const block_bf16x2 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < n_blocks; n++) {
        float block = 0.0f;
        for (i = 0; i < 128; i++)
            block = fmaf(f8_e5m2_value(w[n].qs[i]), bf16x2_at(a, 128 * n + i), block);
        sum = fmaf(block, w[n].d, sum);
    }
    return sum;
}

static inline float f8_e5m2_dot_f32(const block_f8_e5m2 *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < 2 * n_blocks; n++) {
        const block_f8_e5m2 *b = w + n / 2;
        float run = 0.0f;
        for (i = 0; i < 64; i++)
            run = fmaf(b->d * f8_e5m2_value(b->qs[64 * (n % 2) + i]), a[64 * n + i].x, run);
        sum += run;
    }
    return sum;
}

#endif
