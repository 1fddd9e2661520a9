/* columns_half.h: partition of columns_half.cu's products, and layout of their scratch and shared memory, shared by host and kernels.
 *
 * Groups, teams' rows, clusters and parts of K are those of columns.h. A group has the activations of its whole part of K in shared
 * memory, and 16 warps that multiply (8 for 32 columns), however many teams. A warp has two of a team's four tiles, so what it loads of the
 * activations serves 32 rows, and one of the `turns` in which the chunks are dealt.
 */
#ifndef SATCHEL_CUDA_COLUMNS_HALF_H
#define SATCHEL_CUDA_COLUMNS_HALF_H

#include "columns.h"

enum {
    HALF_MOST = 32 /* columns */,
    HALF_STAGES = 16,
    HALF_BARS = 1024 /* bytes of barriers: 16 a stage, 8 a chunk */
};

/* Columns that the kernel for so many tokens multiplies: 8, 16 or 32. */
BOTH int half_columns(int tokens) {
    return 8 << columns_kind(tokens);
}

/* Bytes of a chunk's activations: halves [four steps of 64][columns][128 bytes] in 128-byte swizzle, sums of the eight stretches
 * [columns][four pairs of sums, then what these left over], scales [columns]. */
BOTH int half_chunk_bytes(int columns) {
    return (548 * columns + 127) / 128 * 128;
}
BOTH int half_sums_at(int columns) {
    return 512 * columns;
}
BOTH int half_scales_at(int columns) {
    return 544 * columns;
}

BOTH uint64_t half_scratch(const gpu_call *c) {
    return (uint64_t)packed_chunks(&c->v[1]) * (uint64_t)half_chunk_bytes(half_columns(c->v[0].shape[0]));
}

/* Warps of a group that multiply, by the registers that they need; most teams; turns of the chunks. */
#define HALF_WARPS_OF(columns) ((columns) > 16 ? 8 : 16)
#define HALF_TEAMS_OF(columns) (HALF_WARPS_OF(columns) / 4)
#define HALF_TURNS_OF(columns, teams) (HALF_WARPS_OF(columns) / (2 * (teams)))
/* Behind them stand two warps that fetch, and as many more as tell the number of teams: none, one or two for 1, 2 and 4. */
#define HALF_THREADS_OF(columns, teams) (32 * (HALF_WARPS_OF(columns) + 2 + (teams) / 2))

/* Offsets in shared memory from an address aligned to 128 bytes: the activations of `chunks` chunks, the weights' ring, barriers. */
typedef struct {
    int stages, weight, weights, bars, teams, bytes; /* weight: bytes of one stage */
} half_room;

BOTH half_room half_room_of(int columns, int chunks, int teams, int chunk_bytes) {
    half_room r;
    /* Sums of each turn, which reuse the memory of all before the barriers in the end. */
    int sums = HALF_TURNS_OF(columns, teams) * columns * (teams * COLUMNS_ROWS + 4) * 4;
    r.weight = teams * 4 * chunk_bytes;
    r.weights = chunks * half_chunk_bytes(columns);
    r.stages = (COLUMNS_SHARED - HALF_BARS - r.weights) / r.weight;
    r.stages = r.stages > HALF_STAGES ? HALF_STAGES : r.stages;
    r.bars = r.weights + r.stages * r.weight;
    r.bars = r.bars > sums ? r.bars : sums;
    r.teams = r.bars + HALF_BARS;
    r.bytes = r.teams + COLUMNS_TEAMS * 16 + 128;
    return r;
}

/* Chunks of the longest of so many parts of K. */
BOTH int half_chunks(const gpu_call *c, int parts) {
    return (packed_chunks(&c->v[1]) + parts - 1) / parts;
}

/* Whether a group has room for its part of the activations, two stages of weights and a barrier for each chunk. */
BOTH int half_fits(const gpu_call *c, columns_cut cut) {
    int chunks = half_chunks(c, cut.parts);
    return half_room_of(half_columns(c->v[0].shape[0]), chunks, cut.teams, columns_bytes(c)).stages >= 2 &&
           16 * HALF_STAGES + 8 * chunks <= HALF_BARS;
}

/* Cost model of a partition, in nanoseconds: the longest of a warp's own chunks, the instructions of a multiprocessor's tiles, and
 * the bytes. */
BOTH int64_t half_time(const gpu_call *c, columns_cut cut, int units) {
    int columns = half_columns(c->v[0].shape[0]), chunks = half_chunks(c, cut.parts);
    int all = cut.groups * cut.parts, slots = columns_slots(cut.parts, units);
    int rounds = (all + slots - 1) / slots, busy = all < slots ? all : slots;
    int turns = HALF_TURNS_OF(columns, cut.teams);
    int64_t own = (int64_t)((chunks + turns - 1) / turns) * (500 + 150 * columns / 8),
            tiles = (int64_t)chunks * cut.teams * 4 * (25 + 10 * columns / 8),
            bytes = (int64_t)chunks * cut.teams * 4 * columns_bytes(c) * busy / 4000,
            load = (int64_t)chunks * half_chunk_bytes(columns) * busy / 5000;
    own = own > tiles ? own : tiles;
    own = own > bytes ? own : bytes;
    return rounds * (own + load + 500) + (cut.parts > 1 ? 500 + (int64_t)columns * cut.teams * 4 : 0);
}

/* The quickest partition; teams 0: none fits. */
BOTH columns_cut half_cut_of(const gpu_call *c, int units) {
    columns_cut best = {0, 0, 0};
    int64_t least = INT64_MAX;
    int gated = c->mode & PRODUCT_GATED ? 1 : 0, blocks = columns_all_blocks(c), teams, parts;
    for (teams = 1 + gated; teams <= HALF_TEAMS_OF(half_columns(c->v[0].shape[0])); teams *= 2)
        for (parts = 1; parts <= COLUMNS_PARTS && parts <= packed_chunks(&c->v[1]); parts++) {
            columns_cut cut = {teams, parts, (blocks + (teams >> gated) - 1) / (teams >> gated)};
            int64_t time = half_fits(c, cut) ? half_time(c, cut, units) : INT64_MAX;
            if (time < least) {
                least = time;
                best = cut;
            }
        }
    return best;
}

#endif
