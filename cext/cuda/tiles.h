/* tiles.h: layout of wide.cu's operands in scratch memory.
 *
 * An operand (rows, K) is converted to bf16 in panels of 128 rows. A panel has one tile of 16 KB per 64 elements of K, in
 * wgmma's 128-byte swizzle (hopper.h), so one bulk copy loads a tile without a tensor map. Elements past K are 0; rows past
 * the operand's end are undefined and their results are not stored. First come the panels of the activations, an even number,
 * then those of the weights side by side, an even number too. Gate and up alternate in groups of eight rows, so both sums end
 * in one thread.
 */
#ifndef SATCHEL_CUDA_TILES_H
#define SATCHEL_CUDA_TILES_H

#include "packed.h"

enum { PANEL_ROWS = 128, PANEL_K = 64, PANEL_BYTES = PANEL_ROWS * PANEL_K * 2 };
/* Modes, of which only PRODUCT_DETERMINISTIC may stand beside another. */
enum { WIDE_LINEAR = 0, WIDE_ADD = PRODUCT_ADD, WIDE_SWIGLU = PRODUCT_GATED };

#ifdef __CUDACC__
#define TILES_FN static constexpr __host__ __device__ __forceinline__
#else
#define TILES_FN static inline
#endif

TILES_FN int64_t tiles_panels(int64_t rows) {
    return 2 * ((rows + 2 * PANEL_ROWS - 1) / (2 * PANEL_ROWS));
}

/* Stages of a group's ring, for tiles of y of 128 or 256 columns, and its shared memory in bytes. */
TILES_FN int tiles_stages(int columns) {
    return columns == 256 ? 4 : 6;
}

TILES_FN int tiles_shared(int columns) {
    return tiles_stages(columns) * (PANEL_BYTES + columns * PANEL_K * 2) + 1024 + 256;
}

/* Bytes of the panels of a (rows, k) operand. */
TILES_FN int64_t tiles_bytes(int64_t rows, int64_t k) {
    return tiles_panels(rows) * ((k + PANEL_K - 1) / PANEL_K) * PANEL_BYTES;
}

/* Address of the piece of 8 elements from k on of a row. */
TILES_FN uint64_t tiles_place(uint32_t row, uint32_t k, uint32_t across) {
    uint32_t in = row % PANEL_ROWS, piece = k / 8 % 8;
    return (uint64_t)(row / PANEL_ROWS * across + k / PANEL_K) * PANEL_BYTES + in * 128 + ((piece ^ (in & 7)) << 4);
}

TILES_FN int tiles_weights(const gpu_call *c) {
    return c->mode & WIDE_ADD ? 1 : (int)c->n_in - 1;
}

/* Rows of all weights: columns of the product. */
TILES_FN int64_t tiles_columns(const gpu_call *c) {
    int64_t n = 0;
    if (c->mode & WIDE_SWIGLU)
        return 16 * ((c->v[2].shape[0] + 7) / 8);
    for (int i = 0; i < tiles_weights(c); i++)
        n += c->v[2 + i].shape[0];
    return n;
}

TILES_FN uint64_t tiles_scratch(const gpu_call *c) {
    return (uint64_t)(tiles_bytes(c->v[1].shape[0], c->v[1].shape[1]) +
                      tiles_bytes(tiles_columns(c), c->v[1].shape[1]));
}

#endif
