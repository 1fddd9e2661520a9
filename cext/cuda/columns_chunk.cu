/* columns_chunk.cu: products of packed weights with up to 64 columns, in bf16 with float32 accumulators, by mma.sync: for devices without
 * wgmma.
 *
 * It is columns_warp.cu, with the same bits where K is cut alike, but the warps of a group meet once for a chunk of 256 elements of K, not
 * at every step of 64: with so few columns a warp waits for the others longer than it multiplies. So activations come by whole chunks too,
 * a chunk's four steps are one stretch of code, and its scales are worked out before the warps meet.
 */
#include "columns_chunk.h"
#include "columns_exchange.cuh"
#include "columns_step.cuh"
#include "columns_weights.cuh"
#include "hopper.h"
#include "port.h"

/* d += the group's chunks of K, of which the first stages - 1 of the weights were asked for. columns: the first chunk's; meanwhile() runs
 * while these come, before the warps meet. */
template <class F, int N, class MEANWHILE>
static __device__ __forceinline__ void chunk_walk(const warp_weights &weights, const chunk_room &r, char *shared,
                                                  const char *columns, float (&d)[1][N / 2], MEANWHILE meanwhile) {
    constexpr int COLUMN = N * CHUNK * 2, LEFT = F::BYTES % 512;
    const int lane = threadIdx.x % 32, count = weights.count, ahead = r.stages - 1;
    const char *from = weights.data + (int64_t)ahead * F::BYTES + 16 * lane;
    const char *column = columns + 16 * threadIdx.x;
    const uint32_t b = shared_address(shared);
    char *at = weights.own, *to = at + ahead * r.weight;
    const char *const end = at + r.stages * r.weight;
    const auto fetch_columns = [&](int k) {
        if (k < count)
#pragma unroll
            for (int i = 0; i < COLUMN; i += 16 * WARP_THREADS)
                copy_16(b + k % 2 * COLUMN + 16 * threadIdx.x + i, column + i, 1);
        column += COLUMN;
        copies_close();
    };
    fetch_columns(0);
    meanwhile();
    copies_wait<0>();
    __syncwarp();
    store_scales<F>(at, weights.table);
    for (int k = 0; k < count; k++) {
        group_barrier(); /* the chunk's activations and scales are there, and all have read the chunk before */
        fetch_columns(k + 1);
        if (weights.data && k + ahead < count) {
            const uint32_t own = shared_address(to) + 16 * lane;
#pragma unroll
            for (int i = 0; i + 512 <= F::BYTES; i += 512)
                copy_16(own + i, from + i, 1);
            if (lane < LEFT / 16)
                copy_16(own + F::BYTES - LEFT, from + F::BYTES - LEFT, 1);
        }
        copies_close();
#pragma unroll
        for (int p = 0; p < CHUNK / COLUMNS_K; p++)
            warp_step<F, N, 1, false>(at, 0, weights.table, b + k % 2 * COLUMN + p * N * COLUMNS_K * 2, p, d);
        from += F::BYTES;
        at = at + r.weight == end ? weights.own : at + r.weight;
        to = to + r.weight == end ? weights.own : to + r.weight;
        if (ahead > 1)
            copies_wait<1>(); /* the newest are weights of the chunk after the next */
        else
            copies_wait<0>();
        __syncwarp();
        store_scales<F>(at, weights.table); /* while the tensor cores end this one's products */
    }
}

template <int N> static __device__ __forceinline__ void columns_chunk(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ team_rows where[2];
    constexpr bool HANDS = N <= COLUMNS_BY_WARP;
    __shared__ float factors[HANDS ? N : 1];
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
    const char *const columns = activations_of(c) + (int64_t)from * r.column;
    for (int k = 0; k < r.stages - 1; k++)
        weights.fetch(k, r.stages);
    wait_before();
    const int now = rows_now(c, c.v[0]);
    if (now <= 0) {
        copies_wait<0>();
        return;
    }
    float d[1][N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[0][i] = 0.0f;
    const auto meanwhile = [&] {
        if (HANDS && columns_factored(c))
            columns_factors(c, now, warp, WARP_WARPS, factors);
    };
    switch (weights.format) {
#define CHUNK_WALK_OF(f)                                                                                               \
    case tile_##f::FORMAT:                                                                                             \
        chunk_walk<tile_##f, N>(weights, r, shared, columns, d, meanwhile);                                            \
        break;
        TILE_FORMATS(CHUNK_WALK_OF)
    }
    copies_wait<0>();
    columns_end<N, HANDS>(c, shared, where, now, d[0], HANDS && columns_factored(c) ? factors : nullptr);
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
