/*
 * Q8_0: 32 signed bytes under one f16 scale, x = d * q. The product is exact in float32.
 */
#ifndef SATCHEL_QUANT_Q8_0_H
#define SATCHEL_QUANT_Q8_0_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    int8_t qs[32];
} block_q8_0;

_Static_assert(sizeof(block_q8_0) == 34, "block_q8_0 is a half and 32 bytes");
#define SATCHEL_WEIGHT_q8_0 8, 32, a8_32 /* GGUF number, elements of a block, activations */

static inline void q8_0_unpack(DEVICE const block_q8_0 *b, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)b->qs[i];
}

static inline float q8_0_dot(const block_q8_0 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int i, j;
    for (i = 0; i < n_blocks; i++) {
        int32_t isum = 0;
        for (j = 0; j < 32; j++)
            isum += w[i].qs[j] * a[i].qs[j];
        sum = fmaf((float)isum, f16_to_f32(w[i].d) * a[i].d, sum);
    }
    return sum;
}

#endif
