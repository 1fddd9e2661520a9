/*
 * I32: one plain signed integer per block, without a scale: indices and the like, never a weight of a
 * product, so there is no dot. As a float32 it is the nearest one (ties to even).
 */
#ifndef SATCHEL_QUANT_I32_H
#define SATCHEL_QUANT_I32_H

#include "half.h"

typedef struct {
    int32_t x;
} block_i32;

_Static_assert(sizeof(block_i32) == 4, "block_i32 is one int32_t");

static inline void i32_unpack(DEVICE const block_i32 *b, THREAD float *out) {
    out[0] = (float)b->x;
}

#endif
