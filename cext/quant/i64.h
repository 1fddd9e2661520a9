/*
 * I64: one plain signed integer per block, without a scale: indices and the like, never a weight of a
 * product, so there is no dot. As a float32 it is the nearest one (ties to even).
 */
#ifndef SATCHEL_QUANT_I64_H
#define SATCHEL_QUANT_I64_H

#include "half.h"

typedef struct {
    int64_t x;
} block_i64;

_Static_assert(sizeof(block_i64) == 8, "block_i64 is one int64_t");

static inline void i64_unpack(DEVICE const block_i64 *b, THREAD float *out) {
    out[0] = (float)b->x;
}

#endif
