/* columns_dense.h: layout of columns_dense.cu's shared memory, shared by host and kernels. */
#ifndef SATCHEL_CUDA_COLUMNS_DENSE_H
#define SATCHEL_CUDA_COLUMNS_DENSE_H

#include "columns_warp.h"

enum {
    DENSE_STEPS = 4, /* of weights and activations in the ring, 64 elements each */
    DENSE_ROWS = WARP_WARPS * TILE_ROWS,
    DENSE_STEP = DENSE_ROWS * COLUMNS_K * 2 /* bytes of a step's weights */
};

/* Bytes of a group's memory: stages of activations, then of weights. The sums reuse it in the end. */
BOTH int columns_dense_bytes(int columns) {
    int stages = DENSE_STEPS * (columns * COLUMNS_K * 2 + DENSE_STEP), sums = columns * (DENSE_ROWS + COLUMNS_PAD) * 4;
    return stages > sums ? stages : sums;
}

#endif
