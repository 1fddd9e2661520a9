/* columns_half.h: partition of columns_half.cuh's products, and layout of their scratch and shared memory, shared by host and kernels.
 *
 * Groups, teams' rows, clusters and parts of K are those of columns.h. A group has the activations of its whole part of K in shared
 * memory, and 16 or 8 warps that multiply, however many teams. A warp has two of a team's four tiles, so what it loads of the
 * activations serves 32 rows, and one of the `turns` in which the chunks are dealt. A turn has a ring of its own: a barrier has two
 * states, so a warp that waits at one must wait for each of its rounds.
 */
#ifndef SATCHEL_CUDA_COLUMNS_HALF_H
#define SATCHEL_CUDA_COLUMNS_HALF_H

#include "../../cext/cuda/columns.h"

enum {
    HALF_MOST = 16 /* columns */,
    HALF_TEAMS = 4,
    HALF_STAGES = 16 /* of all turns */,
    HALF_BARS = 1024 /* bytes of barriers: 16 a stage, 8 a chunk */
};

/* Columns that the kernel for so many tokens multiplies: 8 or 16. */
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

/* Threads of a group: its warps that multiply (8 or 16), two that fetch, and none, one or two more, which tell 1, 2 or 4 teams. */
BOTH int half_threads(int warps, int teams) {
    return 32 * (warps + 2 + teams / 2);
}
BOTH int half_warps(int threads) {
    return threads / 32 > 14 ? 16 : 8;
}
BOTH int half_turns(int warps, int teams) {
    return warps / (2 * teams);
}

/* Offsets in shared memory from an address aligned to 128 bytes: the activations of `chunks` chunks, the weights' ring, barriers. */
typedef struct {
    int stages, weight, weights, bars, teams, bytes; /* stages: of a turn; weight: bytes of one stage */
} half_room;

BOTH half_room half_room_of(int columns, int chunks, int warps, int teams, int chunk_bytes) {
    half_room r;
    int turns = half_turns(warps, teams), all;
    /* Sums of each turn, which reuse the memory of all before the barriers in the end. */
    int sums = turns * columns * columns_stride(teams) * 4;
    r.weight = teams * 4 * chunk_bytes;
    r.weights = chunks * half_chunk_bytes(columns);
    all = (COLUMNS_SHARED - HALF_BARS - r.weights) / r.weight;
    r.stages = (all < HALF_STAGES ? all : HALF_STAGES) / turns;
    r.bars = r.weights + turns * r.stages * r.weight;
    r.bars = r.bars > sums ? r.bars : sums;
    r.teams = r.bars + HALF_BARS;
    r.bytes = r.teams + HALF_TEAMS * 16 + 128;
    return r;
}

/* Chunks of the longest of so many parts of K. */
BOTH int half_chunks(const gpu_call *c, int parts) {
    return (packed_chunks(&c->v[1]) + parts - 1) / parts;
}

typedef struct {
    columns_cut cut;
    int warps;
} half_cut;

/* Whether a group has room for its part of the activations, a stage of weights for each turn, two in all, and a barrier for each chunk. */
BOTH int half_fits(const gpu_call *c, half_cut h) {
    int chunks = half_chunks(c, h.cut.parts), turns = half_turns(h.warps, h.cut.teams);
    half_room r = half_room_of(half_columns(c->v[0].shape[0]), chunks, h.warps, h.cut.teams, columns_bytes(c));
    return turns >= 1 && r.stages >= 1 && r.stages * turns >= 2 && 16 * HALF_STAGES + 8 * chunks <= HALF_BARS;
}

/* Cost model of a partition, in nanoseconds, fitted on an H200: rounds of groups, each a start and the longest of a warp's own chunks and of
 * what a multiprocessor can load (33 bytes a nanosecond); then the sums of a cluster. */
BOTH int64_t half_time(const gpu_call *c, half_cut h, int units) {
    int columns = half_columns(c->v[0].shape[0]), chunks = half_chunks(c, h.cut.parts);
    int all = h.cut.groups * h.cut.parts, slots = columns_slots(h.cut.parts, units), rounds = (all + slots - 1) / slots;
    int turns = half_turns(h.warps, h.cut.teams);
    int64_t own = (int64_t)((chunks + turns - 1) / turns) * (500 + 150 * columns / 8),
            tiles = (int64_t)chunks * h.cut.teams * 4 * (25 + 10 * columns / 8),
            bytes = (int64_t)chunks * (h.cut.teams * 4 * columns_bytes(c) + half_chunk_bytes(columns)) / 33;
    own = own > tiles ? own : tiles;
    own = own > bytes ? own : bytes;
    return rounds * (own + 2700) + (h.cut.parts > 1 ? 2200 + (int64_t)columns * h.cut.teams * 16 : 0);
}

/* The quickest partition; teams 0: none fits. */
BOTH half_cut half_cut_of(const gpu_call *c, int units) {
    half_cut best = {{0, 0, 0}, 0};
    int64_t least = INT64_MAX;
    int gated = c->mode & PRODUCT_GATED ? 1 : 0, blocks = columns_all_blocks(c), teams, parts, warps;
    for (teams = 1 + gated; teams <= HALF_TEAMS; teams *= 2)
        for (parts = 1; parts <= COLUMNS_PARTS && parts <= packed_chunks(&c->v[1]); parts++)
            for (warps = 16; warps >= 8; warps -= 8) {
                half_cut h = {{teams, parts, (blocks + (teams >> gated) - 1) / (teams >> gated)}, warps};
                int64_t time = half_fits(c, h) ? half_time(c, h, units) : INT64_MAX;
                if (time < least) {
                    least = time;
                    best = h;
                }
            }
    return best;
}

#endif
