/*
 * MXFP4: 32 four-bit floats (E2M1) under one power of two, x = 2^(e - 128) * table[q] with doubled, so whole, table
 * values; nibbles as in q4_0. The two smallest scales are subnormal float32; only an overflow rounds.
 */
#ifndef SATCHEL_QUANT_MXFP4_H
#define SATCHEL_QUANT_MXFP4_H

#include "a8_32.h"

typedef struct {
    uint8_t e;
    uint8_t qs[16];
} block_mxfp4;

_Static_assert(sizeof(block_mxfp4) == 17, "block_mxfp4 is a byte of scale and 16 of codes");
#define TAIL_mxfp4 0                       /* in a panel: offset of the tail byte, e */
#define SATCHEL_WEIGHT_mxfp4 39, 32, a8_32 /* GGUF number, elements of a block, activations */

#define E2M1_TABLE(f)                                                                                                  \
    {f(0), f(1), f(2), f(3), f(4), f(6), f(8), f(12), f(0), f(-1), f(-2), f(-3), f(-4), f(-6), f(-8), f(-12)}
#define E2M1_PLAIN(x) x

/* Twice the value of an E2M1 code. */
static inline int8_t e2m1_table(int q) {
    QUANT_LOCAL int8_t table[16] = E2M1_TABLE(E2M1_PLAIN);
    return table[q];
}

static inline float mxfp4_scale(uint8_t e) {
    return f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static inline void mxfp4_unpack(DEVICE const block_mxfp4 *b, THREAD float *out) {
    float d = mxfp4_scale(b->e);
    int j;
    for (j = 0; j < 16; j++) {
        out[j] = d * (float)e2m1_table(b->qs[j] & 15);
        out[j + 16] = d * (float)e2m1_table(b->qs[j] >> 4);
    }
}

static inline float mxfp4_dot(const block_mxfp4 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int i, j;
    for (i = 0; i < n_blocks; i++) {
        int32_t isum = 0;
        for (j = 0; j < 16; j++) {
            isum += e2m1_table(w[i].qs[j] & 15) * a[i].qs[j];
            isum += e2m1_table(w[i].qs[j] >> 4) * a[i].qs[j + 16];
        }
        sum = fmaf((float)isum, mxfp4_scale(w[i].e) * a[i].d, sum);
    }
    return sum;
}

#endif
