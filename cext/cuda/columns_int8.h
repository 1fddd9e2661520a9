/* columns_int8.h: partition of columns_int8.cu's products, and layout of their scratch and shared memory, shared by host and kernels.
 *
 * Activations are cut into pieces, 16 tokens of a chunk of K each, in the order of gemv.cuh. A step of a group multiplies one piece.
 */
#ifndef SATCHEL_CUDA_COLUMNS_INT8_H
#define SATCHEL_CUDA_COLUMNS_INT8_H

#include "batch.h"
#include "columns_warp.h"

enum {
    INT8_TILES = 2,                  /* of 16 rows that a warp has: a group has 256 rows */
    INT8_COLUMNS = 64,               /* tokens of a group */
    INT8_PIECES = INT8_COLUMNS / 16, /* steps of a chunk */
    INT8_AHEAD = 2,                  /* steps that copies of pieces are ahead */
    INT8_STAGES = INT8_AHEAD + 1     /* of pieces in the ring */
};

/* Offsets in shared memory; pieces lie at 0. weight: bytes of a chunk of all rows, of which there is one. */
typedef struct {
    int weight, weights, bytes;
} int8_room;

BOTH int8_room int8_room_of(int chunk_bytes) {
    int8_room r;
    int sums =
        INT8_COLUMNS * (INT8_TILES * WARP_WARPS * TILE_ROWS + COLUMNS_PAD) * 4; /* they reuse the memory in the end */
    r.weight = INT8_TILES * WARP_WARPS * chunk_bytes;
    r.weights = INT8_STAGES * BATCH_ACTS;
    r.bytes = r.weights + r.weight;
    r.bytes = r.bytes > sums ? r.bytes : sums;
    return r;
}

/* Clocks of a chunk on a multiprocessor whose tensor cores are fast enough, by what a format's codes are multiplied with (tile_formats.cuh):
 * an integer for 32 elements, one for 16, or a float. Fitted to times of an H200. */
enum { INT8_BY_32 = 10400, INT8_BY_16 = 16100, INT8_BY_FLOAT = 10700 };

BOTH int int8_chunk_clocks(uint32_t format) {
    switch (format & 0xFFFFFFu) {
    case 12: /* Q4_K */
    case 13: /* Q5_K */
    case 23: /* IQ4_XS */
        return INT8_BY_32;
    case 14: /* Q6_K */
        return INT8_BY_16;
    }
    return INT8_BY_FLOAT;
}

/* Of a group whose tensor cores take so many clocks for a chunk's products, and for its minimums. */
BOTH warp_clocks int8_clocks_of(const gpu_call *c, int64_t products, int64_t minimums) {
    warp_clocks clocks = {0, 3500, 4360, 1090};
    int i;
    for (i = 2; i <= product_last(c, c->mode); i++) {
        int own = int8_chunk_clocks(c->v[i].format);
        int64_t tensor = products + (own == INT8_BY_32 ? minimums : 0);
        own = tensor > own ? (int)tensor : own;
        clocks.chunk = own > clocks.chunk ? own : clocks.chunk;
    }
    return clocks;
}

/* Bytes of the pieces at the head of scratch: [tokens / 16][chunks], of whole groups. */
BOTH uint64_t int8_scratch(const gpu_call *c) {
    uint64_t groups = ((uint64_t)c->v[0].shape[0] + INT8_COLUMNS - 1) / INT8_COLUMNS;
    return groups * INT8_PIECES * (uint64_t)packed_chunks(&c->v[1]) * BATCH_ACTS;
}

#endif
