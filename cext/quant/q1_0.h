/*
 * Q1_0: 128 signs under one f16 scale, x = d where the bit is set and -d where it is not; bit i of byte j is number
 * 8 j + i. In panels the words of bits are as q5_0's top bits. Nothing rounds in decoding.
 */
#ifndef SATCHEL_QUANT_Q1_0_H
#define SATCHEL_QUANT_Q1_0_H

#include "q5_0.h"

typedef struct {
    uint16_t d;
    uint8_t qs[16];
} block_q1_0;

_Static_assert(sizeof(block_q1_0) == 18, "block_q1_0 is a half and 16 bytes of bits");
#define SATCHEL_WEIGHT_q1_0 41, 128, a8_32 /* GGUF number, elements of a block, activations */

static inline uint32_t q1_0_pack_word(int word, uint32_t x) {
    (void)word;
    return q5_bits_pack(x);
}

static inline uint32_t q1_0_unpack_word(int word, uint32_t x) {
    (void)word;
    return q5_bits_unpack(x);
}
#define PACK_WORD_q1_0 q1_0_pack_word
#define UNPACK_WORD_q1_0 q1_0_unpack_word

/* 1 or -1. */
static inline int q1_0_code(DEVICE const block_q1_0 *b, int i) {
    return 2 * ((b->qs[i / 8] >> (i % 8)) & 1) - 1;
}

/* Numbers 32 g .. 32 g + 31. */
static inline void q1_0_part(DEVICE const block_q1_0 *b, int g, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)q1_0_code(b, 32 * g + i);
}

static inline void q1_0_unpack(DEVICE const block_q1_0 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 4; g++)
        q1_0_part(b, g, out + 32 * g);
}

static inline float q1_0_dot(const block_q1_0 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < 4 * n_blocks; n++) {
        int32_t isum = 0;
        for (i = 0; i < 32; i++)
            isum += q1_0_code(w + n / 4, 32 * (n % 4) + i) * a[n].qs[i];
        sum = fmaf((float)isum, f16_to_f32(w[n / 4].d) * a[n].d, sum);
    }
    return sum;
}

#endif
