/*
 * I16: one plain signed integer per block, without a scale: indices and the like, never a weight of a
 * product, so there is no dot. As a float32 it is the nearest one (ties to even).
 */
#ifndef SATCHEL_QUANT_I16_H
#define SATCHEL_QUANT_I16_H

#include "half.h"

typedef struct {
    int16_t x;
} block_i16;

_Static_assert(sizeof(block_i16) == 2, "block_i16 is one int16_t");

static inline void i16_unpack(DEVICE const block_i16 *b, THREAD float *out) {
    out[0] = (float)b->x;
}

#endif
