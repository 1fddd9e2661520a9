/* tile_push.cuh: an all-reduce that begins in the product before it: as soon as a tile of y is computed, wide.cu pushes it to the
 * other members as bfloat16, beside the products of the next tiles; sum_tiles of reduce.cu adds up what has come.
 *
 * A tile has 128 rows of BN columns, and a piece for each of 8 waves, of 16 rows, in the order in which wgmma's accumulators lie in a
 * wave's registers: so a wave's stores are whole lines, and the wave that adds up reads as many. A piece has a flag, the collective's
 * number, in the inbox of parts (group_call.h). Members compute tiles of one shape, and a member keeps its own, rounded alike.
 *
 * Of two members, each pushes all tiles to the other. Of more, a tile goes to its owner alone, who adds up and pushes the sum to all:
 * fewer bytes, of which half go beside the product.
 */
#ifndef SATCHEL_CUDA_TILE_PUSH_CUH
#define SATCHEL_CUDA_TILE_PUSH_CUH

#include "call.h"
#include "group_call.h"
#include "half.h"

enum { PUSH_ROWS = 128, PUSH_WAVES = 8, PUSH_WAVE_ROWS = PUSH_ROWS / PUSH_WAVES };

/* What a member's kernels know of a sum by tiles. */
struct tile_sum {
    const gpu_group *g;
    uint32_t number;
};

static __device__ __forceinline__ tile_sum tile_sum_of(const gpu_call &c) {
    return {(const gpu_group *)c.arg[GROUP_ARG],
            (uint32_t)((const int32_t *)c.counts)[GROUP_COUNT] + (uint32_t)c.arg[GROUP_ARG_PLACE]};
}

/* Bytes before a lane's sixteen of a piece; i: which of BN / 16. */
template <int BN> static __device__ __forceinline__ uint64_t piece_at(int64_t piece, int i) {
    return (uint64_t)piece * (PUSH_WAVE_ROWS * BN * 2) + 16 * (32 * i + threadIdx.x % 32);
}

static __device__ __forceinline__ uint64_t pushed_at(const tile_sum &s, uint32_t member, uint32_t source) {
    return group_parts(s.g, member, source, s.number) + s.g->parts_flags;
}

static __device__ __forceinline__ volatile uint32_t *piece_flag(const tile_sum &s, uint32_t member, uint32_t source,
                                                                int64_t piece) {
    return (volatile uint32_t *)(group_parts(s.g, member, source, s.number) + 4 * piece);
}

/* Whether a member adds up a tile. */
static __device__ __forceinline__ bool adds_up(const tile_sum &s, uint32_t member, int64_t piece) {
    return s.g->members == 2 || (uint32_t)(piece / PUSH_WAVES) % s.g->members == member;
}

/* A wave's piece of a tile, from its accumulators, to the members that add it up. */
template <int BN>
static __device__ __forceinline__ void push_piece(const tile_sum &s, int64_t piece, const float (&d)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 16; i++) {
        const uint4 x =
            make_uint4(bfloats_of_floats(d[8 * i], d[8 * i + 1]), bfloats_of_floats(d[8 * i + 2], d[8 * i + 3]),
                       bfloats_of_floats(d[8 * i + 4], d[8 * i + 5]), bfloats_of_floats(d[8 * i + 6], d[8 * i + 7]));
        for (uint32_t q = 0; q < s.g->members; q++)
            if (adds_up(s, q, piece))
                *(uint4 *)((q == s.g->rank ? s.g->rounded : pushed_at(s, q, s.g->rank)) + piece_at<BN>(piece, i)) = x;
    }
}

/* Tells that a piece has been pushed; `summed`: its sum, to all. The fence waits for what the wave pushed last, so a piece is flagged when the next one is ready: by
 * then the link has taken it. */
static __device__ __forceinline__ void flag_piece(const tile_sum &s, int64_t piece, bool summed = false) {
    __syncwarp();
    if (threadIdx.x % 32)
        return;
    __threadfence_system();
    for (uint32_t q = 0; q < s.g->members; q++)
        if (q != s.g->rank && (summed || adds_up(s, q, piece)))
            *piece_flag(s, q, s.g->rank, piece) = s.number;
}

#endif
