/* columns_warp.h: partition of columns_warp.cu's products, and layout of their scratch and shared memory, shared by host and kernels.
 *
 * A group has eight warps, each with one or two tiles of 16 rows, and a block of columns; `parts` groups split the chunks of K.
 */
#ifndef SATCHEL_CUDA_COLUMNS_WARP_H
#define SATCHEL_CUDA_COLUMNS_WARP_H

#include "columns.h"

enum {
    WARP_COLUMNS = 64, /* of a block, at most */
    WARP_WARPS = 8,
    WARP_THREADS = 32 * WARP_WARPS,
    WARP_STEPS = 4, /* of activations, 64 elements each, in the ring */
    WARP_PARTS = 16,
    WARP_COUNTERS = 1024, /* blocks of rows and columns whose K is split, at most */
    WARP_TOKENS = 8192,
    WARP_SHARED = 99 << 10 /* up to so many bytes there is a third stage of weights */
};

/* Offsets in shared memory; activations lie at 0. weight: bytes of one stage. */
typedef struct {
    int stages, weight, weights, tables, bytes;
} warp_room;

BOTH warp_room warp_room_staged(int stages, int columns, int tiles, int chunk_bytes) {
    warp_room r;
    int sums =
        columns * (tiles * WARP_WARPS * TILE_ROWS + COLUMNS_PAD) * 4; /* they reuse the stages' memory in the end */
    r.stages = stages;
    r.weight = WARP_WARPS * tiles * chunk_bytes;
    r.weights = WARP_STEPS * columns * COLUMNS_K * 2;
    r.tables = r.weights + stages * r.weight;
    r.bytes = r.tables + WARP_WARPS * tiles * COLUMNS_TABLE;
    r.bytes = r.bytes > sums ? r.bytes : sums;
    return r;
}

BOTH warp_room warp_room_of(int columns, int tiles, int chunk_bytes) {
    warp_room r = warp_room_staged(3, columns, tiles, chunk_bytes);
    return tiles == 1 && r.bytes <= WARP_SHARED ? r : warp_room_staged(2, columns, tiles, chunk_bytes);
}

/* Columns of a block. */
BOTH int warp_columns(int tokens) {
    return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : WARP_COLUMNS;
}

typedef struct {
    int rows, columns, parts; /* blocks of rows, of columns; parts of K */
    int64_t time;             /* of the product, in a multiprocessor's clocks */
} warp_cut;

/* Clocks of a group: for a chunk of K, for its start and end, and for exchanging its sums with the other parts. */
typedef struct {
    int chunk, ends, exchange, part;
} warp_clocks;

/* Fitted to times of an H200. */
BOTH warp_clocks warp_clocks_of(int columns, int tiles) {
    warp_clocks one = {4360, 8720, 4360, 1090}, two = {9100, 1800, 4360, 1090}, half = {7400, 3500, 3500, 1800},
                whole = {10200, 7000, 7000, 3500};
    return columns > 128 ? whole : columns > WARP_COLUMNS ? half : tiles > 1 ? two : one;
}

/* Of blocks of n columns and `tiles` tiles a warp. slots: groups that are resident at a time. */
BOTH warp_cut warp_cut_of(const gpu_call *c, int n, int tiles, int slots, warp_clocks clocks) {
    int gated = c->mode & PRODUCT_GATED ? 1 : 0, teams = 2 * tiles >> gated, chunks = packed_chunks(&c->v[1]), parts;
    int tokens = c->v[0].shape[0];
    warp_cut cut = {(columns_all_blocks(c) + teams - 1) / teams, (tokens + n - 1) / n, 1, INT64_MAX};
    int64_t groups = (int64_t)cut.rows * cut.columns;
    for (parts = 1; parts <= WARP_PARTS && 2 * parts <= chunks + 1 && (parts == 1 || groups <= WARP_COUNTERS);
         parts++) {
        int64_t rounds = (groups * parts + slots - 1) / slots;
        int64_t time = rounds * ((int64_t)(chunks + parts - 1) / parts * clocks.chunk + clocks.ends) +
                       (parts > 1 ? clocks.exchange + parts * clocks.part : 0);
        if (time < cut.time)
            cut.time = time, cut.parts = parts;
    }
    return cut;
}

/* Bytes of the partial sums of all parts, which follow the activations in scratch. */
BOTH uint64_t warp_sums(int n, int tiles, warp_cut cut) {
    uint64_t block = (uint64_t)n * (uint64_t)tiles * WARP_WARPS * TILE_ROWS * 4;
    return cut.parts > 1 ? (uint64_t)cut.parts * (uint64_t)cut.rows * (uint64_t)cut.columns * block : 0;
}

#endif
