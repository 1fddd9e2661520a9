/*
 * IQ3_S: 256 numbers as 64 points with a sign for each coordinate, x = d * (2 scale + 1) * sign * point. The codebook has 512
 * points of four coordinates; a four-bit scale serves 32 numbers.
 *
 * A byte of qs holds the lower eight bits of an index; a byte of qh holds the ninth bits of eight; a byte of signs serves eight
 * numbers. Decoding is exact. In panels, words of signs have q5_0's order of bits.
 */
#ifndef SATCHEL_QUANT_IQ3_S_H
#define SATCHEL_QUANT_IQ3_S_H

#include "iq3_xxs.h"
#include "q5_0.h"

typedef struct {
    uint16_t d;
    uint8_t qs[64];
    uint8_t qh[8];
    uint8_t signs[32];
    uint8_t scales[4];
} block_iq3_s;

_Static_assert(sizeof(block_iq3_s) == 110, "block_iq3_s is a half, 72 bytes of points, 32 of signs and 4 of scales");
#define TAIL_iq3_s 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq3_s 21, 256, a8_256 /* GGUF number, elements of a block, activations */

static inline uint32_t iq3_s_pack_word(int word, uint32_t x) {
    return word >= 18 && word < 26 ? q5_bits_pack(x) : x;
}

static inline uint32_t iq3_s_unpack_word(int word, uint32_t x) {
    return word >= 18 && word < 26 ? q5_bits_unpack(x) : x;
}
#define PACK_WORD_iq3_s iq3_s_pack_word
#define UNPACK_WORD_iq3_s iq3_s_unpack_word

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq3_s_part_codes(DEVICE const block_iq3_s *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    QUANT_LOCAL int8_t value[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    int i;
    scale[0] = scale[1] = (int8_t)(2 * ((b->scales[g / 2] >> (4 * (g % 2))) & 15) + 1);
    for (i = 0; i < 8; i++) {
        int high = (b->qh[g] >> i) & 1;
        iq3_point(value, points_iq3_s[b->qs[8 * g + i] | high << 8], b->signs[4 * g + i / 2] >> (4 * (i % 2)),
                  code + 4 * i);
    }
}

A8_256_FORMAT(iq3_s, f16_to_f32(b->d))

#endif
