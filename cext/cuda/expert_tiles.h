/* expert_tiles.h: partition of expert_tiles.cu's products, and layout of their scratch and shared memory, shared by host and
 * kernels.
 *
 * A tile is 256 rows of an expert's matrices (with gate and up 128 of each) times up to `most` of its pairs (token, expert).
 */
#ifndef SATCHEL_CUDA_EXPERT_TILES_H
#define SATCHEL_CUDA_EXPERT_TILES_H

#include "columns.h"
#include "experts.h"

enum {
    EXPERT_MOST = 1024, /* experts */
    EXPERT_LIST_THREADS = 1024,
    EXPERT_SORTERS = 8,                      /* groups that sort many pairs */
    EXPERT_WIDE = 128,                       /* pairs of a tile: multiplied by warpgroups */
    EXPERT_NARROW = 32,                      /* pairs of a tile: multiplied by each warp */
    EXPERT_WARPS = 8,                        /* that multiply, each two tiles of 16 rows */
    EXPERT_THREADS = 128 + 32 * EXPERT_WARPS /* the first 128 fetch */
};

/* Offsets in shared memory from a 1024-byte aligned address. weight: bytes of one stage, `groups`: that fit an SM */
typedef struct {
    int groups, weight_stages, column_stages, weight, column, weights, tables, bars, bytes;
} expert_room;

/* Bytes of a warp's tables of scales: of the two parts of a chunk, and in wide tiles of the next chunk. */
BOTH int expert_tables(int most) {
    return (most == EXPERT_WIDE ? 4 : 2) * COLUMNS_TABLE;
}

BOTH expert_room expert_room_of(int most, int chunk_bytes) {
    expert_room r;
    int fixed = EXPERT_WARPS * expert_tables(most) + 256 + 1024, limit = 110 << 10, least = most == EXPERT_WIDE ? 3 : 4;
    r.weight = 2 * EXPERT_WARPS * chunk_bytes;
    r.column = most * COLUMNS_K * 2;
    r.groups = most == EXPERT_NARROW && limit - fixed - 2 * r.weight >= least * r.column ? 2 : 1;
    limit = r.groups == 2 ? limit : COLUMNS_SHARED;
    r.weight_stages = 4;
    while (r.weight_stages > 1 && limit - fixed - r.weight_stages * r.weight < least * r.column)
        r.weight_stages--;
    r.column_stages = (limit - fixed - r.weight_stages * r.weight) / r.column;
    r.column_stages = r.column_stages < 8 ? r.column_stages : 8;
    r.weights = r.column_stages * r.column;
    r.tables = r.weights + r.weight_stages * r.weight;
    r.bars = r.tables + EXPERT_WARPS * expert_tables(most);
    r.bytes = r.bars + 256 + 1024;
    return r;
}

/* Row blocks of an expert's tiles. warps: that multiply. */
BOTH int expert_blocks(const gpu_view *w, int matrices, int warps) {
    int rows = 2 * warps * TILE_ROWS / matrices;
    return (w->shape[1] + rows - 1) / rows;
}

/* Offsets in scratch: four counts (tiles, pairs without an expert here, the others), tiles of four words (expert, first place
 * in the list, pairs, pairs of the expert), the list of pairs by expert, and the activations' rows as bf16, which have no scales. */
typedef struct {
    uint64_t tiles, list, rows, scales, bytes;
} expert_scratch;

BOTH expert_scratch expert_scratch_of(const gpu_call *c, int most) {
    expert_scratch s;
    const gpu_view *w = c->v + 2, *x = c->v + 1;
    int64_t pairs = (int64_t)c->v[0].shape[0] * c->v[0].shape[1], width = w->shape[2];
    int64_t rows = (int64_t)x->shape[1] * x->shape[2] == width ? c->v[0].shape[0] : pairs;
    s.tiles = 16;
    s.list = s.tiles + 16 * (uint64_t)(pairs / most + (pairs < w->shape[0] ? pairs : w->shape[0]));
    s.rows = (s.list + 4 * (uint64_t)pairs + 127) / 128 * 128;
    s.scales = s.bytes = s.rows + (uint64_t)rows * ((width + CHUNK - 1) / CHUNK) * (CHUNK * 2);
    return s;
}

#endif
