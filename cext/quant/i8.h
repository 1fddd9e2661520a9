/*
 * I8: one plain signed integer per block, without a scale: indices and the like, never a weight of a product,
 * so there is no dot. As a float32 it is the nearest one (ties to even).
 */
#ifndef SATCHEL_QUANT_I8_H
#define SATCHEL_QUANT_I8_H

#include "half.h"

typedef struct {
    int8_t x;
} block_i8;

_Static_assert(sizeof(block_i8) == 1, "block_i8 is one int8_t");

static inline void i8_unpack(DEVICE const block_i8 *b, THREAD float *out) {
    out[0] = (float)b->x;
}

#endif
