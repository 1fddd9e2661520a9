/* columns_dense.cu: products of F16 and BF16 weights in the file's layout with 5 to 64 columns, in bf16 with float32 accumulators, by
 * mma.sync: for devices without wgmma.
 *
 * columns_convert brings the activations, or their norm, in order, as for columns_warp.cu. A group has 128 rows, 16 for each of its eight
 * warps, and all columns. Weights and activations come by cp.async, steps of 64 elements of K, in 128-byte swizzle; the first weights
 * before the kernel ahead has ended. Where rows make too few groups, `parts` of them split K, as in columns_warp.cu. A sum's order depends
 * on the matrices, the number of columns that the call is made for and the device.
 */
#include "columns_dense.h"
#include "columns_exchange.cuh"
#include "columns_sums.cuh"
#include "hopper.h"
#include "port.h"

/* Two halves as two bf16. */
static __device__ __forceinline__ uint32_t bf16_of_halves(uint32_t x) {
    const float2 v = floats_of_halves(x);
    return bfloats_of_floats(v.x, v.y);
}

/* d += this warp's 16 rows of a step, at w, times its N columns, at b. */
template <int N>
static __device__ __forceinline__ void dense_step(uint32_t w, uint32_t b, bool halves, float (&d)[N / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 16, column = lane % 8 + (N > 8 ? lane / 16 * 8 : 0),
              half = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < COLUMNS_K / 16; i += 2) {
        uint32_t a[2][4];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            load_matrices(a[k], w + row * 128 + (((2 * (i + k) + lane / 16) ^ (row & 7)) << 4));
            if (halves)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    a[k][r] = bf16_of_halves(a[k][r]);
        }
        if constexpr (N == 8) {
            uint32_t x[4]; /* of both stretches of 16 elements */
            load_matrices(x, b + column * 128 + (((2 * (i + lane / 16) + half) ^ (column & 7)) << 4));
#pragma unroll
            for (int k = 0; k < 2; k++)
                mma_bf16(d, a[k][0], a[k][1], a[k][2], a[k][3], x[2 * k], x[2 * k + 1]);
        } else {
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int n = 0; n < N / 16; n++) {
                    uint32_t x[4];
                    load_matrices(x, b + (16 * n + column) * 128 + (((2 * (i + k) + half) ^ (column & 7)) << 4));
                    mma_bf16(d + 8 * n, a[k][0], a[k][1], a[k][2], a[k][3], x[0], x[1]);
                    mma_bf16(d + 8 * n + 4, a[k][0], a[k][1], a[k][2], a[k][3], x[2], x[3]);
                }
        }
    }
}

template <int N> static __device__ __forceinline__ void columns_dense_warp(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ team_rows where[2];
    constexpr int STEP = N * COLUMNS_K * 2, OWN = TILE_ROWS * COLUMNS_K * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]),
              width = c.v[1].shape[1];
    const int padded = 8 << columns_kind(c.v[0].shape[0]), parts = gridDim.y;
    const int from = 4 * columns_part(chunks, blockIdx.y, parts),
              steps = 4 * columns_part(chunks, blockIdx.y + 1, parts) - from;
    const uint32_t columns_at = shared_address(shared), weights_at = columns_at + DENSE_STEPS * STEP + warp * OWN;
    launch_next();
    if (threadIdx.x < 2)
        where[threadIdx.x] = rows_of_team(c, blockIdx.x, threadIdx.x, 2);
    __syncthreads();
    const team_rows team = where[warp / 4];
    const gpu_view &v = c.v[team.which];
    const int piece = lane % 8, below = lane / 8, left = team.left - warp % 4 * TILE_ROWS;
    const bool halves = v.format == 1;
    const char *const rows =
        (const char *)v.data + (int64_t)(team.row + warp % 4 * TILE_ROWS + below) * (int64_t)v.stride;
    const auto fetch_weights = [&](int s) { /* rows and elements that do not exist become zeros */
                                            const int k = (from + s) * COLUMNS_K + 8 * piece;
                                            const uint32_t to = weights_at + s % DENSE_STEPS * DENSE_STEP;
#pragma unroll
                                            for (int i = 0; i < TILE_ROWS / 4; i++) {
                                                const int row = below + 4 * i, exists = row < left && k < width;
                                                copy_16(to + row * 128 + ((piece ^ (row & 7)) << 4),
                                                        exists ? rows + 4 * i * (int64_t)v.stride + 2 * (int64_t)k
                                                               : (const char *)v.data,
                                                        exists);
                                            }
    };
    const char *const columns = (const char *)c.scratch + (int64_t)from * padded * 128;
    const auto fetch_columns = [&](int s) {
#pragma unroll
        for (int i = 16 * threadIdx.x; i < STEP; i += 16 * WARP_THREADS)
            copy_16(columns_at + s % DENSE_STEPS * STEP + i, columns + (int64_t)s * padded * 128 + i, 1);
    };
    for (int s = 0; s < DENSE_STEPS - 1 && s < steps; s++)
        fetch_weights(s);
    wait_before();
    const int now = rows_now(c, c.v[0]);
    if (now <= 0) {
        copies_wait<0>();
        return;
    }
#pragma unroll
    for (int s = 0; s < DENSE_STEPS - 1; s++) {
        if (s < steps)
            fetch_columns(s);
        copies_close();
    }
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    for (int s = 0; s < steps; s++) {
        copies_wait<DENSE_STEPS - 2>();
        __syncthreads(); /* the step has come, and all have read the one before */
        if (s + DENSE_STEPS - 1 < steps) {
            fetch_weights(s + DENSE_STEPS - 1);
            fetch_columns(s + DENSE_STEPS - 1);
        }
        copies_close();
        dense_step<N>(weights_at + s % DENSE_STEPS * DENSE_STEP, columns_at + s % DENSE_STEPS * STEP, halves, d);
    }
    copies_wait<0>();
    columns_end<N>(c, shared, where, now, d);
}

#define COLUMNS_DENSE(N)                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARP_THREADS, 1)                                                      \
        columns_dense_warp_##N(const __grid_constant__ gpu_call c) {                                                   \
        columns_dense_warp<N>(c);                                                                                      \
    }
COLUMNS_DENSE(8)
COLUMNS_DENSE(16)
COLUMNS_DENSE(32)
COLUMNS_DENSE(64)
