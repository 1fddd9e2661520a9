/* wide_warp.cu: matrix products of many tokens, y (T, N) = x (T, K) @ weights (N, K).T, by bf16 mma.sync with float32 accumulators:
 * wide.cu for devices without wgmma.
 *
 * wide_tiles.cu has converted activations and weights to bf16 panels. A group of eight warps computes 128 tokens by 128 columns of
 * y, a warp 64 by 32; steps of 64 elements of K come by cp.async, three of them in shared memory. A sum runs over K in order
 * for any number of tokens.
 */
#include "hopper.h"
#include "tile.cuh"
#include "wide_store.cuh"
#include "wide_warp.h"

enum { ROWS_OF_WARP = 64, COLUMNS_OF_WARP = 32 };

template <int MODE> static __device__ __forceinline__ void wide_warp(const gpu_call &c) {
    extern __shared__ __align__(128) uint8_t memory[];
    constexpr int STAGE = 2 * PANEL_BYTES, M = ROWS_OF_WARP / 16, N = COLUMNS_OF_WARP / 8;
    const int k_all = c.v[1].shape[1], tokens = rows_of(&c, &c.v[1]), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wide_shape s = {(const uint8_t *)c.scratch,
                    (const uint8_t *)c.scratch + tiles_bytes(c.v[1].shape[0], k_all, PANEL_K), tokens,
                    (int)tiles_columns(&c), (k_all + PANEL_K - 1) / PANEL_K};
    const int m_at = blockIdx.x, n_at = blockIdx.y, row = warp % 2 * ROWS_OF_WARP, column = warp / 2 * COLUMNS_OF_WARP;
    const int64_t panel = (int64_t)s.across * PANEL_BYTES;
    const uint8_t *x = s.x + m_at * panel, *w = s.w + n_at * panel;
    const uint32_t base = shared_address(memory);
    if (m_at * PANEL_ROWS >= tokens)
        return;
    const auto fetch = [&](int k) {
        if (k < s.across) {
            const uint32_t to = base + k % WIDE_WARP_STAGES * STAGE;
#pragma unroll
            for (int i = 16 * threadIdx.x; i < PANEL_BYTES; i += 16 * WIDE_WARP_THREADS) {
                copy_16(to + i, x + (int64_t)k * PANEL_BYTES + i, 1);
                copy_16(to + PANEL_BYTES + i, w + (int64_t)k * PANEL_BYTES + i, 1);
            }
        }
        copies_close();
    };
    float d[M][4 * N];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            d[m][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < WIDE_WARP_STAGES - 1; k++)
        fetch(k);
    for (int k = 0; k < s.across; k++) {
        copies_wait<WIDE_WARP_STAGES - 2>();
        __syncthreads(); /* the step has come, and all have read the one before */
        fetch(k + WIDE_WARP_STAGES - 1);
        const uint32_t a_at = base + k % WIDE_WARP_STAGES * STAGE, b_at = a_at + PANEL_BYTES;
#pragma unroll
        for (int i = 0; i < PANEL_K / 16; i++) {
            uint32_t a[M][4], b[N / 2][4];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_matrices(a[m], a_at + piece_at(row + 16 * m + lane % 16, 2 * i + lane / 16, PANEL_ROWS));
#pragma unroll
            for (int n = 0; n < N / 2; n++)
                load_matrices(b[n], b_at + piece_at(column + 16 * n + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2,
                                                    PANEL_ROWS));
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++)
                    mma_bf16(d[m] + 4 * n, a[m][0], a[m][1], a[m][2], a[m][3], b[n / 2][n % 2 * 2],
                             b[n / 2][n % 2 * 2 + 1]);
        }
    }
    copies_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++)
        wide_store<COLUMNS_OF_WARP, MODE>(c, s, d[m], m_at * PANEL_ROWS + row + 16 * m, n_at * PANEL_ROWS + column);
}

#define WIDE_WARP(name, MODE)                                                                                          \
    extern "C" __global__ void __launch_bounds__(WIDE_WARP_THREADS, 1) name(const __grid_constant__ gpu_call c) {      \
        wide_warp<MODE>(c);                                                                                            \
    }
WIDE_WARP(linear_warp, WIDE_LINEAR)
WIDE_WARP(linear_add_warp, WIDE_ADD)
WIDE_WARP(linear_swiglu_warp, WIDE_SWIGLU)
