/* tiles.h: layout of wide.cu's operands in scratch memory.
 *
 * An operand (rows, K) is converted to bf16 or E4M3 in panels of 128 rows. A panel has one tile of 16 KB per 128 bytes of its rows
 * (64 or 128 elements of K), in wgmma's 128-byte swizzle (hopper.h), so one bulk copy loads a tile without a tensor map. Elements past K
 * are 0; rows past the operand's end are undefined and their results are not stored. First come the panels of the activations, an even
 * number, then those of the weights side by side, an even number too. Gate and up alternate in groups of eight rows, so both sums end
 * in one thread. E4M3 has a float32 scale for each row; these follow all panels, in the rows' order.
 */
#ifndef SATCHEL_CUDA_TILES_H
#define SATCHEL_CUDA_TILES_H

#include "packed.h"

enum { PANEL_ROWS = 128, PANEL_WIDTH = 128 /* bytes of a tile's row */, PANEL_BYTES = PANEL_ROWS * PANEL_WIDTH };
enum { PANEL_K = PANEL_WIDTH / 2 /* elements of bf16 */, PANEL_FP8 = PANEL_WIDTH /* elements of E4M3 */ };
/* Modes, of which only PRODUCT_DETERMINISTIC, or PRODUCT_NORM with the first and the last, may stand beside another. */
enum { WIDE_LINEAR = 0, WIDE_ADD = PRODUCT_ADD, WIDE_SWIGLU = PRODUCT_GATED };

#ifdef __CUDACC__
#define TILES_FN static constexpr __host__ __device__ __forceinline__
#else
#define TILES_FN static inline
#endif

TILES_FN int64_t tiles_panels(int64_t rows) {
    return 2 * ((rows + 2 * PANEL_ROWS - 1) / (2 * PANEL_ROWS));
}

enum {
    TILE_WARPS = 8 /* of a group, that multiply */,
    ROOM_PAD = 8 /* floats behind a row of a room, for its banks */
};

/* Whether sums leave a group through shared memory (wide_rows.cuh). Where a residual is added a warp waits for that in any case, and
 * another stage is worth more (measured). */
TILES_FN int tiles_staged(int mode) {
    return !(mode & WIDE_ADD);
}

/* Of tiles of y of 128 or 256 columns: stages of a group's ring; columns that a warp's room holds of 16 rows; bytes of all rooms; floats of
 * a tile's scales, of which there are as many as tiles on the way; and a group's shared memory in bytes. */
TILES_FN int tiles_stages(int columns, int mode) {
    return (columns == 256 ? 4 : 6) - tiles_staged(mode);
}

TILES_FN int tiles_pass(int columns) {
    return columns / 2;
}

TILES_FN int tiles_rooms(int columns, int mode) {
    return tiles_staged(mode) ? TILE_WARPS * TILE_ROWS * (tiles_pass(columns) + ROOM_PAD) * 4 : 0;
}

TILES_FN int tiles_row_scales(int columns) {
    return PANEL_ROWS + columns;
}

TILES_FN int tiles_shared(int columns, int mode) {
    return tiles_stages(columns, mode) * (PANEL_BYTES + columns * PANEL_WIDTH) + tiles_rooms(columns, mode) +
           (tiles_stages(columns, mode) + 1) * tiles_row_scales(columns) * 4 + 1024 + 256;
}

/* Bytes of the panels of a (rows, k) operand with so many elements in a tile's row: PANEL_K or PANEL_FP8. */
TILES_FN int64_t tiles_bytes(int64_t rows, int64_t k, int in_tile) {
    return tiles_panels(rows) * ((k + in_tile - 1) / in_tile) * PANEL_BYTES;
}

/* Where row r of a weight stands among the panels' rows; step 1: of a gate or an up. */
TILES_FN uint32_t panel_row(uint32_t r, uint32_t first, uint32_t step) {
    return step ? r / 8 * 16 + r % 8 + first : r + first;
}

/* Address of the piece of 16 bytes of a row from byte `at` on. */
TILES_FN uint64_t tiles_piece(uint32_t row, uint32_t at, uint32_t across) {
    uint32_t in = row % PANEL_ROWS, piece = at / 16 % 8;
    return (uint64_t)(row / PANEL_ROWS * across + at / PANEL_WIDTH) * PANEL_BYTES + in * PANEL_WIDTH +
           ((piece ^ (in & 7)) << 4);
}

/* Address of the piece of 8 elements of bf16 from k on of a row. */
TILES_FN uint64_t tiles_place(uint32_t row, uint32_t k, uint32_t across) {
    return tiles_piece(row, 2 * k, across);
}

BOTH int tiles_weights(const gpu_call *c) {
    return product_last(c, c->mode) - 1;
}

/* Rows of all weights: columns of the product. */
BOTH int64_t tiles_columns(const gpu_call *c) {
    int64_t n = 0;
    if (c->mode & WIDE_SWIGLU)
        return 16 * ((c->v[2].shape[0] + 7) / 8);
    for (int i = 0; i < tiles_weights(c); i++)
        n += c->v[2 + i].shape[0];
    return n;
}

/* Bytes of all panels. */
BOTH uint64_t tiles_panels_bytes(const gpu_call *c, int in_tile) {
    return (uint64_t)(tiles_bytes(c->v[1].shape[0], c->v[1].shape[1], in_tile) +
                      tiles_bytes(tiles_columns(c), c->v[1].shape[1], in_tile));
}

BOTH uint64_t tiles_scratch(const gpu_call *c) {
    return tiles_panels_bytes(c, PANEL_K);
}

/* Rows of the activations' panels: the weights' scales stand behind so many. */
BOTH int64_t tiles_scales(const gpu_call *c) {
    return tiles_panels(c->v[1].shape[0]) * PANEL_ROWS;
}

BOTH uint64_t tiles_scratch_fp8(const gpu_call *c) {
    return tiles_panels_bytes(c, PANEL_FP8) +
           4 * (uint64_t)(tiles_scales(c) + tiles_panels(tiles_columns(c)) * PANEL_ROWS);
}

#endif
