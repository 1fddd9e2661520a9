/* heads.h: constants shared by attention_heads.cu and its table entries (small.c). */
#ifndef SATCHEL_CUDA_HEADS_H
#define SATCHEL_CUDA_HEADS_H

#include "attention_shape.h"

enum {
    HEADS_CHUNK = 256 /* least positions of a split */,
    HEADS_FRESH = 512 /* bytes of the token's own key and value */
};
enum { HEADS_MOST = 8 /* most query heads per KV head */ };

SHAPE_FN int heads_shared(int d, int heads, int hopper) {
    int ring = WARPS * ring_stages(d, hopper) * d * 64, results = WARPS * heads * (d + RESULT_HEAD) * 4;
    return (ring > results ? ring : results) + (2 * heads + 3) * d * 4 + HEADS_FRESH;
}

#endif
