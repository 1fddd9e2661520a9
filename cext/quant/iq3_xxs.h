/*
 * IQ3_XXS: 256 numbers in eight groups of 32, a group as eight points with signs, x = d * (scale + 1/2) / 2 * sign * point. The
 * codebook has 256 points of four coordinates.
 *
 * A group's word of signs holds four fields of seven signs, each for eight numbers, and in its top four bits the scale. The eighth
 * sign of a field makes the number of minus signs even. The integer scale is 2 scale + 1, with the step d / 4. Decoding is exact.
 * In panels, words of signs have iq2_xxs's order of bits.
 */
#ifndef SATCHEL_QUANT_IQ3_XXS_H
#define SATCHEL_QUANT_IQ3_XXS_H

#include "iq2_xxs.h"

typedef struct {
    uint16_t d;
    uint8_t qs[64];
    uint8_t signs[32];
} block_iq3_xxs;

_Static_assert(sizeof(block_iq3_xxs) == 98, "block_iq3_xxs is a half, 64 bytes of points and 32 of signs and scales");
#define TAIL_iq3_xxs 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq3_xxs 18, 256, a8_256 /* GGUF number, elements of a block, activations */

static inline uint32_t iq3_xxs_pack_word(int word, uint32_t x) {
    return word >= 16 ? iq_signs_pack(x) : x;
}

static inline uint32_t iq3_xxs_unpack_word(int word, uint32_t x) {
    return word >= 16 ? iq_signs_unpack(x) : x;
}
#define PACK_WORD_iq3_xxs iq3_xxs_pack_word
#define UNPACK_WORD_iq3_xxs iq3_xxs_unpack_word

/* A point of four coordinates with its signs. A word of points.h holds which of the eight values they are, a byte
 * each. */
static inline void iq3_point(THREAD const int8_t *value, uint32_t point, int signs, THREAD int8_t *code) {
    int i;
    for (i = 0; i < 4; i++) {
        int8_t v = value[point >> (8 * i) & 7];
        code[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq3_xxs_part_codes(DEVICE const block_iq3_xxs *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    QUANT_LOCAL int8_t value[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    uint32_t signs;
    int i;
    memcpy(&signs, b->signs + 4 * g, 4);
    scale[0] = scale[1] = (int8_t)(2 * (signs >> 28) + 1);
    for (i = 0; i < 8; i++)
        iq3_point(value, points_iq3_xxs[b->qs[8 * g + i]], iq_even_signs(signs >> (7 * (i / 2)) & 127) >> (4 * (i % 2)),
                  code + 4 * i);
}

A8_256_FORMAT(iq3_xxs, f16_to_f32(b->d) * 0.25f)

#endif
