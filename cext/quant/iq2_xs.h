/*
 * IQ2_XS: 256 numbers as 32 points with signs, x = d * (scale + 1/2) / 4 * sign * point. The codebook has 512 points of eight
 * coordinates; a four-bit scale serves 16 numbers.
 *
 * A half of qs holds an index of nine bits and seven signs; the eighth sign makes the number of minus signs even. The integer
 * scale is 2 scale + 1, with the step d / 8. Decoding is exact. In panels, a word of two points has its own order of bits, see
 * iq2_xs_place().
 */
#ifndef SATCHEL_QUANT_IQ2_XS_H
#define SATCHEL_QUANT_IQ2_XS_H

#include "iq2_xxs.h"

typedef struct {
    uint16_t d;
    uint16_t qs[32];
    uint8_t scales[8];
} block_iq2_xs;

_Static_assert(sizeof(block_iq2_xs) == 74, "block_iq2_xs is a half, 64 bytes of points and signs and 8 of scales");
#define TAIL_iq2_xs 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq2_xs 17, 256, a8_256 /* GGUF number, elements of a block, activations */

/* In panels, a word of two points holds the points in bits 0-8 and 9-17, then the signs: that of code 4 j + i of these
 * 16 at bit 18 + 4 i + j / 2 + 2 (j % 2). The eighth signs would stand on top. */
static inline int iq2_xs_place(int bit) {
    int point = bit / 16, b = bit % 16;
    return b < 9 ? 9 * point + b : 18 + 4 * ((b - 9) % 4) + point + 2 * ((b - 9) / 4);
}

static inline uint32_t iq2_xs_pack_word(int word, uint32_t x) {
    uint32_t out = 0;
    int i;
    for (i = 0; i < 32; i++)
        out |= (x >> i & 1) << iq2_xs_place(i);
    return word < 16 ? out : x;
}

static inline uint32_t iq2_xs_unpack_word(int word, uint32_t x) {
    uint32_t out = 0;
    int i;
    for (i = 0; i < 32; i++)
        out |= (x >> iq2_xs_place(i) & 1) << i;
    return word < 16 ? out : x;
}
#define PACK_WORD_iq2_xs iq2_xs_pack_word
#define UNPACK_WORD_iq2_xs iq2_xs_unpack_word

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq2_xs_part_codes(DEVICE const block_iq2_xs *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    for (i = 0; i < 2; i++)
        scale[i] = (int8_t)(2 * ((b->scales[g] >> (4 * i)) & 15) + 1);
    for (i = 4 * g; i < 4 * g + 4; i++)
        iq2_point(points_iq2_xs[b->qs[i] & 511], iq_even_signs((uint32_t)b->qs[i] >> 9), code + 8 * (i % 4));
}

A8_256_FORMAT(iq2_xs, f16_to_f32(b->d) * 0.125f)

#endif
