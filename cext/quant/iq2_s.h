/*
 * IQ2_S: 256 numbers as 32 points with a sign for each coordinate, x = d * (scale + 1/2) / 4 * sign * point. The codebook has 1024
 * points of eight coordinates; a four-bit scale serves 16 numbers.
 *
 * A byte of qs holds the lower eight bits of an index; a byte of qh holds the upper two bits of four; a byte of signs serves one
 * point. The integer scale is 2 scale + 1, with the step d / 8. Decoding is exact. In panels, words of signs have q5_0's order of
 * bits.
 */
#ifndef SATCHEL_QUANT_IQ2_S_H
#define SATCHEL_QUANT_IQ2_S_H

#include "iq2_xxs.h"
#include "q5_0.h"

typedef struct {
    uint16_t d;
    uint8_t qs[32];
    uint8_t signs[32];
    uint8_t qh[8];
    uint8_t scales[8];
} block_iq2_s;

_Static_assert(sizeof(block_iq2_s) == 82, "block_iq2_s is a half, 72 bytes of points and signs and 8 of scales");
#define TAIL_iq2_s 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq2_s 22, 256, a8_256 /* GGUF number, elements of a block, activations */

static inline uint32_t iq2_s_pack_word(int word, uint32_t x) {
    return word / 8 == 1 ? q5_bits_pack(x) : x;
}

static inline uint32_t iq2_s_unpack_word(int word, uint32_t x) {
    return word / 8 == 1 ? q5_bits_unpack(x) : x;
}
#define PACK_WORD_iq2_s iq2_s_pack_word
#define UNPACK_WORD_iq2_s iq2_s_unpack_word

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq2_s_part_codes(DEVICE const block_iq2_s *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    for (i = 0; i < 2; i++)
        scale[i] = (int8_t)(2 * ((b->scales[g] >> (4 * i)) & 15) + 1);
    for (i = 0; i < 4; i++) {
        int high = (b->qh[g] >> (2 * i)) & 3;
        iq2_point(points_iq2_s[b->qs[4 * g + i] | high << 8], b->signs[4 * g + i], code + 8 * i);
    }
}

A8_256_FORMAT(iq2_s, f16_to_f32(b->d) * 0.125f)

#endif
