/*
 * IQ1_S: 256 numbers as 32 points, x = d * (2 scale + 1) * (point + shift). The codebook has 2048 points of eight coordinates -1,
 * 0 or 1; the shift is an eighth, up or down.
 *
 * A half of qh serves 32 numbers: it holds the upper three bits of four indexes, the three-bit scale and, in its top bit, the sign
 * of the shift. Integer codes are 8 point + 1 or 8 point - 1, with the step d / 8. Decoding is exact.
 */
#ifndef SATCHEL_QUANT_IQ1_S_H
#define SATCHEL_QUANT_IQ1_S_H

#include "a8_256.h"
#include "points.h"

typedef struct {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
} block_iq1_s;

_Static_assert(sizeof(block_iq1_s) == 50, "block_iq1_s is a half, 32 bytes of points and 8 halves");
#define TAIL_iq1_s 0                         /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_iq1_s 19, 256, a8_256 /* GGUF number, elements of a block, activations */

/* A point whose coordinates are moved by shift eighths. A word of points.h holds the coordinates plus 1, four bits
 * each: byte i those of i and 4 + i. */
static inline void iq1_point(uint32_t point, int shift, THREAD int8_t *code) {
    int i;
    for (i = 0; i < 8; i++)
        code[i] = (int8_t)(8 * ((int)(point >> (8 * (i % 4) + 4 * (i / 4)) & 3) - 1) + shift);
}

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void iq1_s_part_codes(DEVICE const block_iq1_s *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int h = b->qh[g], i;
    scale[0] = scale[1] = (int8_t)(2 * ((h >> 12) & 7) + 1);
    for (i = 0; i < 4; i++)
        iq1_point(points_iq1_s[b->qs[4 * g + i] | ((h >> (3 * i)) & 7) << 8], h >> 15 ? -1 : 1, code + 8 * i);
}

A8_256_FORMAT(iq1_s, f16_to_f32(b->d) * 0.125f)

#endif
