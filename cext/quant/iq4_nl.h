/*
 * IQ4_NL: 32 four-bit codes under one f16 scale, x = d * table[q]; the table is denser near zero. Nibbles lie as in q4_0. The
 * product is exact in float32.
 */
#ifndef SATCHEL_QUANT_IQ4_NL_H
#define SATCHEL_QUANT_IQ4_NL_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    uint8_t qs[16];
} block_iq4_nl;

_Static_assert(sizeof(block_iq4_nl) == 18, "block_iq4_nl is a half and 16 bytes");
#define SATCHEL_WEIGHT_iq4_nl 20, 32, a8_32 /* GGUF number, elements of a block, activations */

#define IQ4_NL_TABLE(f)                                                                                                \
    {f(-127), f(-104), f(-83), f(-65), f(-49), f(-35), f(-22), f(-10),                                                 \
     f(1),    f(13),   f(25),  f(38),  f(53),  f(69),  f(89),  f(113)}
#define IQ4_NL_PLAIN(x) x

static inline int8_t iq4_nl_table(int q) {
    QUANT_LOCAL int8_t table[16] = IQ4_NL_TABLE(IQ4_NL_PLAIN);
    return table[q];
}

static inline void iq4_nl_unpack(DEVICE const block_iq4_nl *b, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int j;
    for (j = 0; j < 16; j++) {
        out[j] = d * (float)iq4_nl_table(b->qs[j] & 15);
        out[j + 16] = d * (float)iq4_nl_table(b->qs[j] >> 4);
    }
}

static inline float iq4_nl_dot(const block_iq4_nl *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int i, j;
    for (i = 0; i < n_blocks; i++) {
        int32_t isum = 0;
        for (j = 0; j < 16; j++) {
            isum += iq4_nl_table(w[i].qs[j] & 15) * a[i].qs[j];
            isum += iq4_nl_table(w[i].qs[j] >> 4) * a[i].qs[j + 16];
        }
        sum = fmaf((float)isum, f16_to_f32(w[i].d) * a[i].d, sum);
    }
    return sum;
}

#endif
