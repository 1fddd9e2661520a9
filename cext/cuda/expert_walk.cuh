/* expert_walk.cuh: the walk of resident groups over the tiles of a mixture's products, and where a tile's sums go, for expert_tiles.cu and
 * expert_warp.cuh. A group takes every gridDim.x-th piece of work: a tile of pairs (expert_list.cuh) times a block of rows.
 */
#ifndef SATCHEL_CUDA_EXPERT_WALK_CUH
#define SATCHEL_CUDA_EXPERT_WALK_CUH

#include "expert_tiles.h"
#include "experts.cuh"

/* What a group's threads share: the rings are each thread's own view of them. */
struct expert_walk {
    const gpu_call &c;
    expert_call e;
    const int4 *tiles;
    const int *list;
    const char *rows;
    int warps, blocks, all; /* warps: that multiply, each two tiles of 16 rows */
    __device__ __forceinline__ expert_walk(const gpu_call &c_, const expert_scratch &s, int warps_)
        : c(c_), e(c_), warps(warps_) {
        tiles = (const int4 *)(c.scratch + s.tiles);
        list = (const int *)(c.scratch + s.list);
        rows = (const char *)(c.scratch + s.rows);
        blocks = expert_blocks(&c.v[2], e.matrices, warps);
        all = ((const int *)c.scratch)[0] * blocks;
    }
    /* The tile of 16 rows that a warp has as its part 0 or 1. */
    __device__ __forceinline__ int row_tile(int block, int warp, int part) const {
        return e.matrices == 2 ? block * warps + warp : (block * warps + warp) * 2 + part;
    }
};

/* Writes a tile's sums: of a lane pairs 8 i + 2 (lane % 4) and the next, rows lane / 4 and 8 more of both parts. */
template <int N>
static __device__ __forceinline__ void expert_store(const expert_walk &walk, const int4 &tile, int block, int warp,
                                                    const float (&d)[2][N / 2]) {
    const expert_call &e = walk.e;
    const int lane = threadIdx.x % 32, first = walk.row_tile(block, warp, 0) * TILE_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int n = i / 2 * 8 + lane % 4 * 2 + i % 2, at = i / 2 * 4 + i % 2;
        if (n >= tile.z)
            continue;
        const int pair = walk.list[tile.y + n];
        float *y = e.output(walk.c, pair / e.each, pair % e.each);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = first + 8 * h;
            const float both[2] = {d[0][at + 2 * h], d[1][at + 2 * h]};
            if (row < e.rows)
                y[row] = expert_result(both, e.matrices);
            if (e.matrices == 1 && row + TILE_ROWS < e.rows)
                y[row + TILE_ROWS] = both[1];
        }
    }
}

/* Zeros for the pairs whose expert is on another device. */
static __device__ __forceinline__ void expert_none(const expert_walk &walk) {
    const int4 counts = *(const int4 *)walk.c.scratch;
    for (int i = blockIdx.x; i < counts.y; i += gridDim.x) {
        const int pair = walk.list[counts.z + i];
        float *y = walk.e.output(walk.c, pair / walk.e.each, pair % walk.e.each);
        for (int row = threadIdx.x; row < walk.e.rows; row += blockDim.x)
            y[row] = 0.0f;
    }
}

#endif
