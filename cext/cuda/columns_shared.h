/* columns_shared.h: partition of columns_shared.cu's products and layout of their shared memory, shared by host and kernels. */
#ifndef SATCHEL_CUDA_COLUMNS_SHARED_H
#define SATCHEL_CUDA_COLUMNS_SHARED_H

#include "columns_warp.h"

enum {
    SHARED_ROWS = 128,                           /* of a group */
    SHARED_TILES = 4,                            /* of 16 rows that a warp multiplies */
    SHARED_CHUNKS = 2,                           /* of a warp's weights in the ring */
    OPERAND_BYTES = 512,                         /* the A operand of 16 elements of K, 16 bytes of each lane */
    TILE_OPERANDS = 4 * OPERAND_BYTES,           /* of a step */
    SHARED_OPERANDS = WARP_WARPS * TILE_OPERANDS /* of a group's rows */
};

/* Steps of activations in the ring, for blocks of n columns. */
#define SHARED_STEPS(n) ((n) > 128 ? 2 : 3)

/* Offsets in shared memory; activations lie at 0. weight: bytes of one stage. */
typedef struct {
    int weight, weights, operands, tables, bytes;
} shared_room;

BOTH shared_room shared_room_of(int columns, int chunk_bytes) {
    shared_room r;
    int sums = columns * (SHARED_ROWS + COLUMNS_PAD) * 4; /* they reuse the stages' memory in the end */
    r.weight = WARP_WARPS * chunk_bytes;
    r.weights = SHARED_STEPS(columns) * columns * COLUMNS_K * 2;
    r.operands = r.weights + SHARED_CHUNKS * r.weight;
    r.tables = r.operands + 2 * SHARED_OPERANDS;
    r.bytes = r.tables + WARP_WARPS * COLUMNS_TABLE;
    r.bytes = r.bytes > sums ? r.bytes : sums;
    return r;
}

#endif
