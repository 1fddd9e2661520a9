/*
 * Q2_K: 256 numbers in sixteen groups of 16, two bits each; group g holds x = (d * scale[g]) * q - (dmin *
 * min[g]), with scale in the low four bits of scales[g] and min in the high.
 *
 * Each 32 bytes of qs serve 128 numbers: four runs of 32, run k in bits 2 k and 2 k + 1. Only the subtraction
 * rounds.
 */
#ifndef SATCHEL_QUANT_Q2_K_H
#define SATCHEL_QUANT_Q2_K_H

#include "a8_256.h"

typedef struct {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d;
    uint16_t dmin;
} block_q2_k;

_Static_assert(sizeof(block_q2_k) == 84, "block_q2_k is 16 bytes of scales, 64 of codes and two halves");
#define SATCHEL_WEIGHT_q2_k 10, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Code i (0..31) of part g (0..7), of two bits as q2_k, q3_k and tq2_0 keep them; and code i (0..255). */
static inline int q2_k_part_code(DEVICE const uint8_t *qs, int g, int i) {
    return (qs[32 * (g / 4) + i] >> (2 * (g % 4))) & 3;
}

static inline int q2_k_code(DEVICE const uint8_t *qs, int i) {
    return q2_k_part_code(qs, i / 32, i % 32);
}

/* Numbers 32 g .. 32 g + 31. */
static inline void q2_k_part(DEVICE const block_q2_k *b, int g, THREAD float *out) {
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    int i;
    for (i = 0; i < 32; i++) {
        uint8_t s = b->scales[2 * g + i / 16];
        out[i] = (d * (float)(s & 15)) * (float)q2_k_part_code(b->qs, g, i) - dmin * (float)(s >> 4);
    }
}

static inline void q2_k_unpack(DEVICE const block_q2_k *b, THREAD float *out) {
    int g;
    for (g = 0; g < 8; g++)
        q2_k_part(b, g, out + 32 * g);
}

static inline float q2_k_dot(const block_q2_k *w, const block_a8_256 *a, int n_blocks) {
    float sum = 0.0f;
    int n, g, i;
    for (n = 0; n < n_blocks; n++) {
        int32_t isum = 0, msum = 0;
        for (g = 0; g < 16; g++) {
            int32_t part = 0;
            for (i = 16 * g; i < 16 * g + 16; i++)
                part += q2_k_code(w[n].qs, i) * a[n].qs[i];
            isum += (w[n].scales[g] & 15) * part;
            msum += (w[n].scales[g] >> 4) * a[n].sums[g];
        }
        sum = fmaf((float)isum, f16_to_f32(w[n].d) * a[n].d, sum);
        sum = fmaf(-(float)msum, f16_to_f32(w[n].dmin) * a[n].d, sum);
    }
    return sum;
}

#endif
