/*
 * Q5_K: 256 numbers in eight groups of 32, five bits each; group g holds x = (d * scale[g]) * q - (dmin *
 * min[g]).
 *
 * scales[12] and the nibbles qs are packed as in q4_k; bit g of qh[i] is the top bit of number i of group g.
 * All products are exact in float32, so only the subtraction rounds.
 */
#ifndef SATCHEL_QUANT_Q5_K_H
#define SATCHEL_QUANT_Q5_K_H

#include "q4_k.h"

typedef struct {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} block_q5_k;

_Static_assert(sizeof(block_q5_k) == 176, "block_q5_k is two halves, 12 bytes of scales and 160 of codes");
#define SATCHEL_WEIGHT_q5_k 13, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Code i (0..31) of group g (0..7). */
static inline int q5_k_code(DEVICE const block_q5_k *b, int g, int i) {
    int low = (b->qs[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
    return low | (((b->qh[i] >> g) & 1) << 4);
}

/* Numbers 32 g .. 32 g + 31. */
static inline void q5_k_part(DEVICE const block_q5_k *b, int g, THREAD float *out) {
    uint8_t scale, min;
    float step, low;
    int i;
    q4_k_scale(b->scales, g, &scale, &min);
    step = f16_to_f32(b->d) * (float)scale;
    low = f16_to_f32(b->dmin) * (float)min;
    for (i = 0; i < 32; i++)
        out[i] = step * (float)q5_k_code(b, g, i) - low;
}

static inline void q5_k_unpack(DEVICE const block_q5_k *b, THREAD float *out) {
    int g;
    for (g = 0; g < 8; g++)
        q5_k_part(b, g, out + 32 * g);
}

static inline float q5_k_dot(const block_q5_k *w, const block_a8_256 *a, int n_blocks) {
    float sum = 0.0f;
    int n, g, i;
    for (n = 0; n < n_blocks; n++) {
        int32_t isum = 0, msum = 0;
        uint8_t scale[8], min[8];
        q4_k_scales(w[n].scales, scale, min);
        for (g = 0; g < 8; g++) {
            int32_t part = 0;
            for (i = 0; i < 32; i++)
                part += q5_k_code(w + n, g, i) * a[n].qs[32 * g + i];
            isum += scale[g] * part;
            msum += min[g] * a[n].sums32[g];
        }
        sum = fmaf((float)isum, f16_to_f32(w[n].d) * a[n].d, sum);
        sum = fmaf(-(float)msum, f16_to_f32(w[n].dmin) * a[n].d, sum);
    }
    return sum;
}

#endif
