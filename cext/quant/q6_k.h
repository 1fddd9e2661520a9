/*
 * Q6_K: 256 numbers in sixteen groups of 16, six bits each, signed 8-bit group scales: x = (d * scale[g]) *
 * (q - 32).
 *
 * Each half of the block (128 numbers) owns 64 bytes of ql and 32 of qh. In a half, number i = 32 * k + l (k
 * 0..3) has its low nibble in ql[l + 32 * (k % 2)] (low nibble for k < 2, else high) and its upper two bits
 * in qh[l] at bit 2 * k. All products are exact in float32, so nothing rounds.
 */
#ifndef SATCHEL_QUANT_Q6_K_H
#define SATCHEL_QUANT_Q6_K_H

#include "a8_256.h"

typedef struct {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} block_q6_k;

_Static_assert(sizeof(block_q6_k) == 210, "block_q6_k is 192 bytes of codes, 16 scales and a half");
#define TAIL_q6_k 208                       /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_q6_k 14, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Code l (0..31) of part g (0..7), with its offset of 32: 0..63; and code i (0..255). */
static inline int q6_k_part_code(DEVICE const block_q6_k *b, int g, int l) {
    int half = g / 4, k = g % 4;
    int low = (b->ql[64 * half + 32 * (k % 2) + l] >> (4 * (k / 2))) & 15;
    int high = (b->qh[32 * half + l] >> (2 * k)) & 3;
    return low | (high << 4);
}

static inline int q6_k_code(DEVICE const block_q6_k *b, int i) {
    return q6_k_part_code(b, i / 32, i % 32);
}

/* Numbers 32 g .. 32 g + 31. */
static inline void q6_k_part(DEVICE const block_q6_k *b, int g, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = (d * (float)b->scales[2 * g + i / 16]) * (float)(q6_k_part_code(b, g, i) - 32);
}

static inline void q6_k_unpack(DEVICE const block_q6_k *b, THREAD float *out) {
    int g;
    for (g = 0; g < 8; g++)
        q6_k_part(b, g, out + 32 * g);
}

static inline float q6_k_dot(const block_q6_k *w, const block_a8_256 *a, int n_blocks) {
    float sum = 0.0f;
    int n, g, i;
    for (n = 0; n < n_blocks; n++) {
        int32_t isum = 0;
        for (g = 0; g < 16; g++) {
            int32_t part = 0;
            for (i = 16 * g; i < 16 * g + 16; i++)
                part += q6_k_code(w + n, i) * a[n].qs[i];
            isum += w[n].scales[g] * (part - 32 * a[n].sums[g]);
        }
        sum = fmaf((float)isum, f16_to_f32(w[n].d) * a[n].d, sum);
    }
    return sum;
}

#endif
