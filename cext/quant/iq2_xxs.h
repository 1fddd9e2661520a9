/*
 * IQ2_XXS: 256 numbers in eight groups of 32, a group as four points with signs, x = d * (scale + 1/2) / 4 * sign * point. The
 * codebook has 256 points of eight coordinates.
 *
 * A group is eight bytes: four indexes, then a word of four fields of seven signs and, in its top four bits, the scale. The eighth
 * sign of a field makes the number of minus signs even. The integer scale is 2 scale + 1, with the step d / 8. Decoding is exact.
 * In panels, words of signs have another order of bits, see iq_signs_pack().
 */
#ifndef SATCHEL_QUANT_IQ2_XXS_H
#define SATCHEL_QUANT_IQ2_XXS_H

#include "a8_256.h"
#include "points.h"

typedef struct {
    uint16_t d;
    uint8_t groups[64];
} block_iq2_xxs;

_Static_assert(sizeof(block_iq2_xxs) == 66, "block_iq2_xxs is a half and 64 bytes of points, signs and scales");
#define TAIL_iq2_xxs 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq2_xxs 16, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Seven sign bits with the eighth. */
static inline int iq_even_signs(uint32_t seven) {
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    return (int)(seven | ((parity ^ parity >> 1) & 1) << 7);
}

/* In panels, the sign of code 4 j + i of a group stands at bit j / 2 + 4 (j % 2) of byte i, so that a byte of signs
 * and four codes meet in their places. The eighth signs' places are bits 28 to 31: there is the scale. */
static inline int iq_sign_place(int bit) {
    int field = bit / 7, b = bit % 7;
    return 8 * (b % 4) + field + 4 * (b / 4);
}

static inline uint32_t iq_signs_pack(uint32_t x) {
    uint32_t out = x & 0xF0000000u;
    int i;
    for (i = 0; i < 28; i++)
        out |= (x >> i & 1) << iq_sign_place(i);
    return out;
}

static inline uint32_t iq_signs_unpack(uint32_t packed) {
    uint32_t out = packed & 0xF0000000u;
    int i;
    for (i = 0; i < 28; i++)
        out |= (packed >> iq_sign_place(i) & 1) << i;
    return out;
}

static inline uint32_t iq2_xxs_pack_word(int word, uint32_t x) {
    return word % 2 ? iq_signs_pack(x) : x;
}

static inline uint32_t iq2_xxs_unpack_word(int word, uint32_t x) {
    return word % 2 ? iq_signs_unpack(x) : x;
}
#define PACK_WORD_iq2_xxs iq2_xxs_pack_word
#define UNPACK_WORD_iq2_xxs iq2_xxs_unpack_word

/* A point of eight coordinates with its signs. A word of points.h holds the coordinates' numbers, four bits each:
 * byte i those of i and 4 + i. */
static inline void iq2_point(uint32_t point, int signs, THREAD int8_t *code) {
    QUANT_LOCAL int8_t value[4] = {8, 25, 43, 0};
    int i;
    for (i = 0; i < 8; i++) {
        int8_t v = value[point >> (8 * (i % 4) + 4 * (i / 4)) & 3];
        code[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq2_xxs_part_codes(DEVICE const block_iq2_xxs *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    DEVICE const uint8_t *point = b->groups + 8 * g;
    uint32_t signs;
    int i;
    memcpy(&signs, point + 4, 4);
    scale[0] = scale[1] = (int8_t)(2 * (signs >> 28) + 1);
    for (i = 0; i < 4; i++)
        iq2_point(points_iq2_xxs[point[i]], iq_even_signs(signs >> (7 * i) & 127), code + 8 * i);
}

A8_256_FORMAT(iq2_xxs, f16_to_f32(b->d) * 0.125f)

#endif
