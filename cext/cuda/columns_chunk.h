/* columns_chunk.h: layout of columns_chunk.cu's shared memory, shared by host and kernels. */
#ifndef SATCHEL_CUDA_COLUMNS_CHUNK_H
#define SATCHEL_CUDA_COLUMNS_CHUNK_H

#include "columns_warp.h"

enum { CHUNK_STAGES = 3 /* of weights, at most; of activations there are two */ };

/* Offsets in shared memory; activations lie at 0. weight, column: bytes of one stage. */
typedef struct {
    int stages, weight, column, weights, tables, bytes;
} chunk_room;

BOTH chunk_room chunk_room_of(int stages, int columns, int chunk_bytes) {
    chunk_room r;
    r.stages = stages;
    r.weight = WARP_WARPS * chunk_bytes;
    r.column = columns * CHUNK * 2; /* two of them have room for the sums in the end */
    r.weights = 2 * r.column;
    r.tables = r.weights + stages * r.weight;
    r.bytes = r.tables + WARP_WARPS * COLUMNS_TABLE;
    return r;
}

#endif
