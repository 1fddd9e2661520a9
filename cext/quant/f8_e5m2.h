/*
 * F8_E5M2 (an extension of ours): 128 codes of the eight-bit float E5M2 under one float32 scale, x = d * value(q), as
 * FP8 checkpoints keep their weights. A code is the upper byte of an f16, infinities and NaN included. A code is a
 * bfloat16 exactly: with bf16x2 a block's products are summed in float32 before its scale. Products with float32 are
 * those of decoded numbers, summed in runs of 64.
 */
#ifndef SATCHEL_QUANT_F8_E5M2_H
#define SATCHEL_QUANT_F8_E5M2_H

#include "f8_e4m3.h"

typedef struct {
    float d;
    uint8_t qs[128];
} block_f8_e5m2;

_Static_assert(sizeof(block_f8_e5m2) == 132, "block_f8_e5m2 is a float and 128 bytes");
#define SATCHEL_WEIGHT_f8_e5m2 2002, 128, bf16x2 /* our number, elements of a block, activations */

static inline float f8_e5m2_value(uint8_t q) {
    return f16_to_f32((uint16_t)(q << 8));
}

F8_FORMAT(f8_e5m2)

#endif
