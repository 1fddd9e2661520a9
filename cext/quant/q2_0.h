/*
 * Q2_0: 64 two-bit codes under one f16 scale, x = d * (q - 1), for weights that are mostly -1, 0 or 1; code 4 j + i is bits
 * 2 i and 2 i + 1 of byte j. Nothing rounds in decoding.
 */
#ifndef SATCHEL_QUANT_Q2_0_H
#define SATCHEL_QUANT_Q2_0_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    uint8_t qs[16];
} block_q2_0;

_Static_assert(sizeof(block_q2_0) == 18, "block_q2_0 is a half and 16 bytes of codes");
#define SATCHEL_WEIGHT_q2_0 42, 64, a8_32 /* GGUF number, elements of a block, activations */

/* In panels, code 4 j + i of a word is bits 2 j and 2 j + 1 of byte i, so a shift and a mask extract four codes that follow one
 * another. The exchange undoes itself. */
static inline uint32_t q2_0_exchange_word(int word, uint32_t x) {
    uint32_t out = 0;
    int i;
    (void)word;
    for (i = 0; i < 16; i++)
        out |= (x >> 2 * i & 3) << (8 * (i % 4) + 2 * (i / 4));
    return out;
}
#define PACK_WORD_q2_0 q2_0_exchange_word
#define UNPACK_WORD_q2_0 q2_0_exchange_word

/* From -1 to 2. */
static inline int q2_0_code(DEVICE const block_q2_0 *b, int i) {
    return ((b->qs[i / 4] >> (2 * (i % 4))) & 3) - 1;
}

/* Numbers 32 g .. 32 g + 31. */
static inline void q2_0_part(DEVICE const block_q2_0 *b, int g, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)q2_0_code(b, 32 * g + i);
}

static inline void q2_0_unpack(DEVICE const block_q2_0 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 2; g++)
        q2_0_part(b, g, out + 32 * g);
}

static inline float q2_0_dot(const block_q2_0 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < 2 * n_blocks; n++) {
        int32_t isum = 0;
        for (i = 0; i < 32; i++)
            isum += q2_0_code(w + n / 2, 32 * (n % 2) + i) * a[n].qs[i];
        sum = fmaf((float)isum, f16_to_f32(w[n / 2].d) * a[n].d, sum);
    }
    return sum;
}

#endif
