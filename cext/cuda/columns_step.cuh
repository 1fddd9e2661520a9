/* columns_step.cuh: a step of 64 elements of K by one warp: it dequantizes its tiles of 16 rows in registers and multiplies them with up to
 * 128 columns in shared memory, by mma.sync. For columns_warp.cu, columns_chunk.cu and expert_warp.cu.
 *
 * A column's 64 elements are 128 bytes in 128-byte swizzle, in the order of columns_values.cuh. The sums run over K in order.
 */
#ifndef SATCHEL_CUDA_COLUMNS_STEP_CUH
#define SATCHEL_CUDA_COLUMNS_STEP_CUH

#include "columns.h"
#include "columns_values.cuh"
#include "hopper.h"
#include "tile.cuh"

/* d += this warp's TILES tiles (w: its chunk of each, `apart` bytes from each other; table: their scales, which the first step leaves there
 * if STORE) times step p of four of the chunk, whose N columns lie at b. */
template <class F, int N, int TILES, bool STORE = true>
static __device__ __forceinline__ void warp_step(const char *w, int apart, uint32_t *table, uint32_t b, int p,
                                                 float (&d)[TILES][N / 2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, row = lane % 8 + (N > 8 ? lane / 16 * 8 : 0), half = lane / 8 % 2;
    uint32_t word[TILES][2][4];
    uint4 low[TILES], high[TILES];
    if (STORE && p == 0) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
            store_scales<F>(w + t * apart, table + t * (COLUMNS_TABLE / 4));
        __syncwarp();
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        columns_words<F>(w + t * apart, lane, p, word[t]);
        low[t] = *(const uint4 *)(table + t * (COLUMNS_TABLE / 4) + g * 16 + 4 * p);
        high[t] = *(const uint4 *)(table + t * (COLUMNS_TABLE / 4) + (g + 8) * 16 + 4 * p);
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[TILES][2][4];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint2 scale[2] = {j ? make_uint2(low[t].z, low[t].w) : make_uint2(low[t].x, low[t].y),
                                    j ? make_uint2(high[t].z, high[t].w) : make_uint2(high[t].x, high[t].y)};
            operand_of<F>(word[t][j], j, 0, scale, a[t][0]);
            operand_of<F>(word[t][j], j, 1, scale, a[t][1]);
        }
        if constexpr (N == 8) {
            uint32_t x[4]; /* both halves of the stretch at once */
            load_matrices(x, b + row * 128 + (((2 * (2 * j + lane / 16) + half) ^ (row & 7)) << 4));
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    mma_bf16(d[t], a[t][k][0], a[t][k][1], a[t][k][2], a[t][k][3], x[2 * k], x[2 * k + 1]);
        } else {
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < N / 16; n++) {
                    uint32_t x[4];
                    load_matrices(x, b + (16 * n + row) * 128 + (((2 * (2 * j + k) + half) ^ (row & 7)) << 4));
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        mma_bf16(d[t] + 8 * n, a[t][k][0], a[t][k][1], a[t][k][2], a[t][k][3], x[0], x[1]);
                        mma_bf16(d[t] + 8 * n + 4, a[t][k][0], a[t][k][1], a[t][k][2], a[t][k][3], x[2], x[3]);
                    }
                }
        }
    }
}

#endif
