/*
 * Q5_1: 32 five-bit codes under an f16 scale and an f16 minimum, x = d * q + m, packed as in q5_0. d * q is
 * exact in float32; only the sum rounds. Dot products are those of q4_1.
 */
#ifndef SATCHEL_QUANT_Q5_1_H
#define SATCHEL_QUANT_Q5_1_H

#include "q5_0.h"

typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t qh[4];
    uint8_t qs[16];
} block_q5_1;

_Static_assert(sizeof(block_q5_1) == 24, "block_q5_1 is two halves, 4 bytes of top bits and 16 of nibbles");
#define SATCHEL_WEIGHT_q5_1 7, 32, a8_32 /* GGUF number, elements of a block, activations */

static inline uint32_t q5_1_pack_word(int word, uint32_t x) {
    return word == 1 ? q5_bits_pack(x) : x;
}

static inline uint32_t q5_1_unpack_word(int word, uint32_t x) {
    return word == 1 ? q5_bits_unpack(x) : x;
}
#define PACK_WORD_q5_1 q5_1_pack_word
#define UNPACK_WORD_q5_1 q5_1_unpack_word

static inline void q5_1_unpack(DEVICE const block_q5_1 *b, THREAD float *out) {
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)q5_code(b->qs, b->qh, i) + m;
}

static inline float q5_1_dot(const block_q5_1 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < n_blocks; n++) {
        int32_t isum = 0;
        for (i = 0; i < 32; i++)
            isum += q5_code(w[n].qs, w[n].qh, i) * a[n].qs[i];
        sum = fmaf(fmaf((float)isum, f16_to_f32(w[n].d), (float)a[n].sum * f16_to_f32(w[n].m)), a[n].d, sum);
    }
    return sum;
}

#endif
