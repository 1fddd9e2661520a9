/*
 * I8_G128 (an extension of ours): 128 signed bytes under one float32 scale, x = d * q, as checkpoints with group-wise
 * INT8 keep their weights. A dot product is exact in integers within 32 numbers.
 */
#ifndef SATCHEL_QUANT_I8_G128_H
#define SATCHEL_QUANT_I8_G128_H

#include "a8_32.h"

typedef struct {
    float d;
    int8_t qs[128];
} block_i8_g128;

_Static_assert(sizeof(block_i8_g128) == 132, "block_i8_g128 is a float and 128 bytes");
#define SATCHEL_WEIGHT_i8_g128 2003, 128, a8_32 /* our number, elements of a block, activations */

/* Numbers 32 g .. 32 g + 31. */
static inline void i8_g128_part(DEVICE const block_i8_g128 *b, int g, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = b->d * (float)b->qs[32 * g + i];
}

static inline void i8_g128_unpack(DEVICE const block_i8_g128 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 4; g++)
        i8_g128_part(b, g, out + 32 * g);
}

static inline float i8_g128_dot(const block_i8_g128 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < 4 * n_blocks; n++) {
        int32_t isum = 0;
        for (i = 0; i < 32; i++)
            isum += w[n / 4].qs[32 * (n % 4) + i] * a[n].qs[i];
        sum = fmaf((float)isum, w[n / 4].d * a[n].d, sum);
    }
    return sum;
}

#endif
