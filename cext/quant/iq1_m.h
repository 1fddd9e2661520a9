/*
 * IQ1_M: 256 numbers as 32 points of iq1_s's codebook, x = d * (2 scale + 1) * (point + shift): a three-bit scale for each 16
 * numbers, and the sign of the shift, an eighth, for each eight.
 *
 * A nibble of qh holds the upper three bits of a point's index and the sign of its shift. A half of scales serves 64 numbers: it
 * holds four scales and, in its top four bits, four bits of d, the lowest in the first half. Integer codes are 8 point + 1 or
 * 8 point - 1, with the step d / 8. Decoding is exact.
 */
#ifndef SATCHEL_QUANT_IQ1_M_H
#define SATCHEL_QUANT_IQ1_M_H

#include "iq1_s.h"

typedef struct {
    uint8_t qs[32];
    uint8_t qh[16];
    uint16_t scales[4];
} block_iq1_m;

_Static_assert(sizeof(block_iq1_m) == 56, "block_iq1_m is 48 bytes of points and 4 halves of scales");
#define SATCHEL_WEIGHT_iq1_m 29, 256, a8_256 /* GGUF number, elements of a block, activations */

static inline float iq1_m_scale(DEVICE const block_iq1_m *b) {
    DEVICE const uint16_t *s = b->scales;
    return f16_to_f32((uint16_t)(s[0] >> 12 | (s[1] >> 12) << 4 | (s[2] >> 12) << 8 | (s[3] >> 12) << 12));
}

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq1_m_part_codes(DEVICE const block_iq1_m *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    for (i = 0; i < 2; i++)
        scale[i] = (int8_t)(2 * ((b->scales[g / 2] >> (3 * ((2 * g + i) % 4))) & 7) + 1);
    for (i = 0; i < 4; i++) {
        int h = (b->qh[2 * g + i / 2] >> (4 * (i % 2))) & 15;
        iq1_point(points_iq1_s[b->qs[4 * g + i] | (h & 7) << 8], h & 8 ? -1 : 1, code + 8 * i);
    }
}

A8_256_FORMAT(iq1_m, iq1_m_scale(b) * 0.125f)

#endif
