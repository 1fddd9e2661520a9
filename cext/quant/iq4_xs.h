/*
 * IQ4_XS: 256 numbers in eight groups of 32, x = (d * (scale[g] - 32)) * table[q], with iq4_nl's table and six-bit scales.
 *
 * The low nibble of scale g is nibble g % 2 of scales_l[g / 2]; its upper two bits are bits 2 g and 2 g + 1 of scales_h. The codes
 * of a group are the nibbles of 16 bytes of qs, as in q4_0. Decoding is exact.
 */
#ifndef SATCHEL_QUANT_IQ4_XS_H
#define SATCHEL_QUANT_IQ4_XS_H

#include "a8_256.h"
#include "iq4_nl.h"

typedef struct {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[4];
    uint8_t qs[128];
} block_iq4_xs;

_Static_assert(sizeof(block_iq4_xs) == 136, "block_iq4_xs is two halves, 4 bytes of scales and 128 of codes");
#define SATCHEL_WEIGHT_iq4_xs 23, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq4_xs_part_codes(DEVICE const block_iq4_xs *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int low = (b->scales_l[g / 2] >> (4 * (g % 2))) & 15, high = (b->scales_h >> (2 * g)) & 3, i;
    scale[0] = scale[1] = (int8_t)((low | high << 4) - 32);
    for (i = 0; i < 32; i++)
        code[i] = iq4_nl_table((b->qs[16 * g + i % 16] >> (4 * (i / 16))) & 15);
}

A8_256_FORMAT(iq4_xs, f16_to_f32(b->d))

#endif
