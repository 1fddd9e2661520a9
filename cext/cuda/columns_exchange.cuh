/* columns_exchange.cuh: how groups of columns_warp.cu and its like (columns_chunk, columns_dense, columns_shared) that split K add up their
 * sums: through scratch, the last group to end in the order of the parts.
 */
#ifndef SATCHEL_CUDA_COLUMNS_EXCHANGE_CUH
#define SATCHEL_CUDA_COLUMNS_EXCHANGE_CUH

#include "columns_sums.cuh"
#include "columns_warp.h"
#include "port.h"

/* Leaves this group's part of the sums in scratch, from byte `at` on. True: it is the last one, and has the sums of all parts. */
template <int NUMBERS>
static __device__ __forceinline__ bool columns_exchange(const gpu_call &c, int group, int groups, float (&d)[NUMBERS],
                                                        uint64_t at) {
    __shared__ int last;
    constexpr int64_t BLOCK = (int64_t)NUMBERS * WARP_THREADS;
    constexpr int AT_ONCE = NUMBERS < 8    ? 8
                            : NUMBERS < 64 ? 64 / NUMBERS
                                           : 1; /* parts that are loaded before any is added */
    const int parts = gridDim.y;
    float *all = (float *)(c.scratch + at) + group * BLOCK + 4 * threadIdx.x;
    float *own = all + blockIdx.y * groups * BLOCK;
#pragma unroll
    for (int i = 0; i < NUMBERS; i += 4)
        *(float4 *)(own + i * WARP_THREADS) = make_float4(d[i], d[i + 1], d[i + 2], d[i + 3]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *count = (uint32_t *)c.counters + group;
        last = atomicAdd(count, 1) == (uint32_t)parts - 1;
        if (last)
            *count = 0;
    }
    __syncthreads();
    if (!last)
        return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < NUMBERS; i++)
        d[i] = 0.0f;
    for (int first = 0; first < parts; first += AT_ONCE) {
        float4 v[AT_ONCE][NUMBERS / 4];
#pragma unroll
        for (int part = 0; part < AT_ONCE; part++)
#pragma unroll
            for (int i = 0; i < NUMBERS; i += 4)
                if (first + part < parts)
                    v[part][i / 4] = __ldcg((const float4 *)(all + (first + part) * groups * BLOCK + i * WARP_THREADS));
#pragma unroll
        for (int part = 0; part < AT_ONCE; part++)
#pragma unroll
            for (int i = 0; i < NUMBERS; i += 4)
                if (first + part < parts) {
                    const float4 x = v[part][i / 4];
                    d[i] += x.x, d[i + 1] += x.y, d[i + 2] += x.z, d[i + 3] += x.w;
                }
    }
    return true;
}

/* The end of a group of 128 rows, 16 for each of its eight warps, and up to N columns, of which there are `now`: adds the sums d of all
 * parts of K and writes the output. shared: memory of the group, which nothing fills any more; factors and HANDS: of columns_finish(). */
template <int N, bool HANDS = false>
static __device__ __forceinline__ void columns_end(const gpu_call &c, char *shared, const team_rows *where, int now,
                                                   float (&d)[N / 2], const float *factors = nullptr) {
    constexpr int stride = WARP_WARPS * TILE_ROWS + COLUMNS_PAD;
    const int lane = threadIdx.x % 32;
    float *to = (float *)shared + threadIdx.x / 32 * TILE_ROWS + lane / 4;
    if (gridDim.y > 1 && !columns_exchange(c, blockIdx.x, gridDim.x, d, columns_scratch(&c)))
        return;
    __syncthreads(); /* the stages have been read: the sums reuse their memory */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * stride + i % 4 / 2 * 8] = d[i];
    __syncthreads();
    columns_finish<HANDS>(c, sums_here{(const float *)shared, stride}, where, 2, 1, 0, now, 0, factors);
}

#endif
