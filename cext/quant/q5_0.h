/*
 * Q5_0: 32 five-bit codes under one f16 scale, x = d * (q - 16). Byte j of qs holds the low nibbles of
 * numbers j (low) and j + 16 (high); bit i of qh, four bytes little-endian, is the top bit of number i. The
 * product is exact.
 */
#ifndef SATCHEL_QUANT_Q5_0_H
#define SATCHEL_QUANT_Q5_0_H

#include "a8_32.h"

typedef struct {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
} block_q5_0;

_Static_assert(sizeof(block_q5_0) == 22, "block_q5_0 is a half, 4 bytes of top bits and 16 of nibbles");
#define SATCHEL_WEIGHT_q5_0 6, 32, a8_32 /* GGUF number, elements of a block, activations */

/* In panels, bit 4 j + i of the top bits is moved to bit 8 i + j, so a shift and a mask extract those of four codes. */
static inline uint32_t q5_bits_pack(uint32_t bits) {
    uint32_t out = 0;
    int i;
    for (i = 0; i < 32; i++)
        out |= (bits >> i & 1) << (8 * (i % 4) + i / 4);
    return out;
}

static inline uint32_t q5_bits_unpack(uint32_t packed) {
    uint32_t out = 0;
    int i;
    for (i = 0; i < 32; i++)
        out |= (packed >> (8 * (i % 4) + i / 4) & 1) << i;
    return out;
}

static inline uint32_t q5_0_pack_word(int word, uint32_t x) {
    return word == 0 ? q5_bits_pack(x) : x;
}

static inline uint32_t q5_0_unpack_word(int word, uint32_t x) {
    return word == 0 ? q5_bits_unpack(x) : x;
}
#define PACK_WORD_q5_0 q5_0_pack_word
#define UNPACK_WORD_q5_0 q5_0_unpack_word

/* Code i (0..31) from the nibbles and top bits of a q5_0 or q5_1 block. */
static inline int q5_code(DEVICE const uint8_t *qs, DEVICE const uint8_t *qh, int i) {
    int low = (qs[i % 16] >> (4 * (i / 16))) & 15;
    return low | (((qh[i / 8] >> (i % 8)) & 1) << 4);
}

static inline void q5_0_unpack(DEVICE const block_q5_0 *b, THREAD float *out) {
    float d = f16_to_f32(b->d);
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)(q5_code(b->qs, b->qh, i) - 16);
}

static inline float q5_0_dot(const block_q5_0 *w, const block_a8_32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < n_blocks; n++) {
        int32_t isum = 0;
        for (i = 0; i < 32; i++)
            isum += (q5_code(w[n].qs, w[n].qh, i) - 16) * a[n].qs[i];
        sum = fmaf((float)isum, f16_to_f32(w[n].d) * a[n].d, sum);
    }
    return sum;
}

#endif
