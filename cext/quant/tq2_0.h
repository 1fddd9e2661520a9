/*
 * TQ2_0: 256 two-bit codes under one f16 scale, x = d * (q - 1), for weights -1, 0 and 1. Codes lie as in q2_k. Decoding is exact.
 */
#ifndef SATCHEL_QUANT_TQ2_0_H
#define SATCHEL_QUANT_TQ2_0_H

#include "q2_k.h"

typedef struct {
    uint8_t qs[64];
    uint16_t d;
} block_tq2_0;

_Static_assert(sizeof(block_tq2_0) == 66, "block_tq2_0 is 64 bytes of codes and a half");
#define TAIL_tq2_0 64                        /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_tq2_0 35, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void tq2_0_part_codes(DEVICE const block_tq2_0 *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    scale[0] = scale[1] = 1;
    for (i = 0; i < 32; i++)
        code[i] = (int8_t)(q2_k_part_code(b->qs, g, i) - 1);
}

A8_256_FORMAT(tq2_0, f16_to_f32(b->d))

#endif
