/*
 * Q4_1: 32 four-bit codes under an f16 scale and an f16 minimum, x = d * q + m. Byte j holds number j in its
 * low nibble and number j + 16 in its high nibble. d * q is exact in float32; only the sum rounds. In a
 * dot product d times the sum of codes is fused with m times that of the activations' codes, then scaled once.
 */
#ifndef SATCHEL_QUANT_Q4_1_H
#define SATCHEL_QUANT_Q4_1_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];
} block_q4_1;

_Static_assert(sizeof(block_q4_1) == 20, "block_q4_1 is two halves and 16 bytes");
#define SATCHEL_WEIGHT_q4_1 3, 32, a8_32 /* GGUF number, elements of a block, activations */

static inline void q4_1_unpack(DEVICE const block_q4_1 *b, THREAD float *out) {
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    int j;
    for (j = 0; j < 16; j++) {
        out[j] = d * (float)(b->qs[j] & 15) + m;
        out[j + 16] = d * (float)(b->qs[j] >> 4) + m;
    }
}

static inline float q4_1_dot(const block_q4_1 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int i, j;
    for (i = 0; i < n_blocks; i++) {
        int32_t isum = 0;
        for (j = 0; j < 16; j++) {
            isum += (w[i].qs[j] & 15) * a[i].qs[j];
            isum += (w[i].qs[j] >> 4) * a[i].qs[j + 16];
        }
        sum = fmaf(fmaf((float)isum, f16_to_f32(w[i].d), (float)a[i].sum * f16_to_f32(w[i].m)), a[i].d, sum);
    }
    return sum;
}

#endif
