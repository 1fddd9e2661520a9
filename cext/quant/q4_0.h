/*
 * Q4_0: 32 four-bit codes under one f16 scale, x = d * (q - 8). Byte j holds number j in its low nibble and
 * number j + 16 in its high nibble. The product is exact in float32.
 */
#ifndef SATCHEL_QUANT_Q4_0_H
#define SATCHEL_QUANT_Q4_0_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    uint8_t qs[16];
} block_q4_0;

_Static_assert(sizeof(block_q4_0) == 18, "block_q4_0 is a half and 16 bytes");
#define SATCHEL_WEIGHT_q4_0 2, 32, a8_32 /* GGUF number, elements of a block, activations */

static inline void q4_0_unpack(DEVICE const block_q4_0 *b, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int j;
    for (j = 0; j < 16; j++) {
        out[j] = d * (float)((b->qs[j] & 15) - 8);
        out[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
    }
}

static inline float q4_0_dot(const block_q4_0 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int i, j;
    for (i = 0; i < n_blocks; i++) {
        int32_t isum = 0;
        for (j = 0; j < 16; j++) {
            isum += ((w[i].qs[j] & 15) - 8) * a[i].qs[j];
            isum += ((w[i].qs[j] >> 4) - 8) * a[i].qs[j + 16];
        }
        sum = fmaf((float)isum, f16_to_f32(w[i].d) * a[i].d, sum);
    }
    return sum;
}

#endif
