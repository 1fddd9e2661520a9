/* columns_chunk.cu: products of packed weights with up to 64 columns, in bf16 with float32 accumulators, by mma.sync: for devices without
 * wgmma.
 *
 * It is columns_warp.cu, with the same bits where K is cut alike, but the warps of a group meet once for a chunk of 256 elements of K, not
 * at every step of 64: with so few columns a warp waits for the others longer than it multiplies. So activations come by whole chunks too,
 * and a chunk's four steps are one stretch of code.
 */
#include "columns_chunk.h"
#include "columns_exchange.cuh"
#include "columns_step.cuh"
#include "columns_weights.cuh"
#include "hopper.h"
#include "port.h"

/* d += this warp's chunk at w times the N columns at b. */
template <class F, int N>
static __device__ __forceinline__ void chunk_steps(const char *w, uint32_t *table, uint32_t b, float (&d)[1][N / 2]) {
#pragma unroll
    for (int p = 0; p < CHUNK / COLUMNS_K; p++)
        warp_step<F, N, 1>(w, 0, table, b + p * N * COLUMNS_K * 2, p, d);
}

template <int N> static __device__ __forceinline__ void columns_chunk(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ team_rows where[2];
    const int warp = threadIdx.x / 32, chunks = packed_chunks(&c.v[1]), parts = gridDim.y;
    const int from = columns_part(chunks, blockIdx.y, parts),
              count = columns_part(chunks, blockIdx.y + 1, parts) - from;
    chunk_room r = chunk_room_of(CHUNK_STAGES, N, columns_bytes(&c));
    if (launched_bytes() < r.bytes)
        r = chunk_room_of(CHUNK_STAGES - 1, N, columns_bytes(&c));
    launch_next();
    if (threadIdx.x < 2)
        where[threadIdx.x] = rows_of_team(c, blockIdx.x, threadIdx.x, 2);
    __syncthreads();
    const warp_weights weights = weights_of_warp(c, where[warp / 4], shared, r, from, count);
    const char *const columns = (const char *)c.scratch + (int64_t)from * r.column;
    const auto fetch_columns = [&](int k) {
        if (k < count)
#pragma unroll
            for (int i = 16 * threadIdx.x; i < N * CHUNK * 2; i += 16 * WARP_THREADS)
                copy_16(shared_address(shared + k % 2 * r.column + i), columns + (int64_t)k * r.column + i, 1);
    };
    for (int k = 0; k < r.stages - 1; k++)
        weights.fetch(k, r.stages);
    wait_before();
    const int now = rows_now(c, c.v[0]);
    if (now <= 0) {
        copies_wait<0>();
        return;
    }
    fetch_columns(0);
    copies_close();
    float d[1][N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[0][i] = 0.0f;
    for (int k = 0; k < count; k++) {
        if (k && r.stages == CHUNK_STAGES)
            copies_wait<1>(); /* the newest are weights of the chunk after this one */
        else
            copies_wait<0>();
        __syncthreads(); /* the chunk has come, and all have read the one before */
        fetch_columns(k + 1);
        copies_close();
        weights.fetch(k + r.stages - 1, r.stages);
        copies_close();
        const char *const w = weights.at(k, r.stages);
        const uint32_t b = shared_address(shared + k % 2 * r.column);
        switch (weights.format) {
#define CHUNK_STEPS_OF(f)                                                                                              \
    case tile_##f::FORMAT:                                                                                             \
        chunk_steps<tile_##f, N>(w, weights.table, b, d);                                                              \
        break;
            TILE_FORMATS(CHUNK_STEPS_OF)
        }
    }
    copies_wait<0>();
    columns_end<N>(c, shared, where, now, d[0]);
}

#define COLUMNS_CHUNK(N)                                                                                               \
    extern "C" __global__ void __launch_bounds__(WARP_THREADS, N > 32 ? 1 : 2)                                         \
        columns_chunk_##N(const __grid_constant__ gpu_call c) {                                                        \
        columns_chunk<N>(c);                                                                                           \
    }
COLUMNS_CHUNK(8)
COLUMNS_CHUNK(16)
COLUMNS_CHUNK(32)
COLUMNS_CHUNK(64)
