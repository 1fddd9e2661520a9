/* heads.h: constants shared by attention_heads.cu and its table entries (small.c). */
#ifndef SATCHEL_CUDA_HEADS_H
#define SATCHEL_CUDA_HEADS_H

#include "attention_shape.h"

enum { HEADS_CHUNK = 256 /* least positions of a split */, HEADS_MOST = 8 /* most query heads per KV head */ };

/* Stages of a warp's ring; many: of several tokens, with less of it, for two groups of a multiprocessor (of heads of 64, three). */
SHAPE_FN int heads_stages(int d, int many, int hopper) {
    return ring_stages(d, hopper) - (many && (hopper || d == 64));
}

/* Query heads that a group may take. */
SHAPE_FN int heads_columns(int heads, int many) {
    return many ? 16 : heads;
}

/* Bytes of shared memory: the warps' rings, or their results in the same place; the queries; a head on its way for each warp; the step's own keys
 * and values. */
SHAPE_FN int heads_shared(int d, int heads, int many, int hopper) {
    int columns = heads_columns(heads, many), ring = WARPS * heads_stages(d, many, hopper) * d * 64;
    int results = WARPS * columns * (d + RESULT_HEAD) * 4, fresh = (many ? FEW : 1) * 4 * d;
    return (ring > results ? ring : results) + (columns + WARPS) * d * 4 + fresh;
}

#endif
