/* heads.h: what attention_heads.cu and its entries (heads.c) agree on. */
#ifndef SATCHEL_CUDA_HEADS_H
#define SATCHEL_CUDA_HEADS_H

#include "attention_shape.h"

enum { HEADS_CHUNK = 256 /* positions of a split, at least */, HEADS_FRESH = 512 /* bytes of the token's own key and value */ };
enum { HEADS_MOST = 8 /* query heads of a KV head */, HEADS_COUNTERS = GPU_VIEWS - 1 /* the view that has the counters */ };

SHAPE_FN int heads_shared(int d, int heads) {
    int ring = WARPS * (d == 64 ? 4 : 3) * d * 64, results = WARPS * heads * (d + 2) * 4;
    return (ring > results ? ring : results) + (2 * heads + 3) * d * 4 + HEADS_FRESH;
}

#endif
