/* columns_shared.cu: products of packed weights with many columns, in bf16 with float32 accumulators, by mma.sync: prompts on devices
 * that have no wgmma.
 *
 * columns_convert brings the activations, or their norm, in order, as for columns_warp.cu. A group has 128 rows and a block of 128 or
 * 256 columns. Each of its eight warps dequantizes 16 of the rows, a step of 64 elements of K ahead, and leaves them in shared memory
 * in the order of the A operand; it multiplies 64 rows by a quarter of the columns. So a weight is unpacked once for the block,
 * and a warp reads what it multiplies 8 to 16 times. Half of the warps unpack before they multiply, half after, so that at any
 * time some do arithmetic and some use the matrix units. Where rows and columns make too few groups, `parts` of them split K, as in
 * columns_warp.cu. A sum's order depends on the matrices, the number of columns that the call is made for and the device.
 */
#include "columns_exchange.cuh"
#include "columns_shared.h"
#include "columns_sums.cuh"
#include "columns_values.cuh"
#include "columns_weights.cuh"
#include "hopper.h"
#include "port.h"

/* Dequantizes step p of four of a warp's chunk to shared memory: for each 16 elements of K the A operand, 16 bytes of each lane. */
template <class F> static __device__ __forceinline__ void unpack_step(const char *w, uint32_t *table, int p, char *to) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    uint32_t word[2][4];
    if (p == 0) {
        store_scales<F>(w, table);
        __syncwarp();
    }
    columns_words<F>(w, lane, p, word);
    const uint4 low = *(const uint4 *)(table + g * 16 + 4 * p), high = *(const uint4 *)(table + (g + 8) * 16 + 4 * p);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint2 scale[2] = {j ? make_uint2(low.z, low.w) : make_uint2(low.x, low.y),
                                j ? make_uint2(high.z, high.w) : make_uint2(high.x, high.y)};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t a[4];
            operand_of<F>(word[j], j, h, scale, a);
            *(uint4 *)(to + (2 * j + h) * OPERAND_BYTES + 16 * lane) = make_uint4(a[0], a[1], a[2], a[3]);
        }
    }
}

/* d += this warp's four tiles of a step, whose operands lie at a, times its COLUMNS columns at b. */
template <int COLUMNS>
static __device__ __forceinline__ void multiply_step(const char *a, uint32_t b, float (&d)[SHARED_TILES][COLUMNS / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < COLUMNS_K / 16; k++) {
        uint4 w[SHARED_TILES];
#pragma unroll
        for (int t = 0; t < SHARED_TILES; t++)
            w[t] = *(const uint4 *)(a + (t * (COLUMNS_K / 16) + k) * OPERAND_BYTES + 16 * lane);
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t x[4];
            load_matrices(x, b + (16 * n + row) * 128 + (((2 * k + half) ^ (row & 7)) << 4));
#pragma unroll
            for (int t = 0; t < SHARED_TILES; t++) {
                mma_bf16(d[t] + 8 * n, w[t].x, w[t].y, w[t].z, w[t].w, x[0], x[1]);
                mma_bf16(d[t] + 8 * n + 4, w[t].x, w[t].y, w[t].z, w[t].w, x[2], x[3]);
            }
        }
    }
}

template <int N> static __device__ __forceinline__ void columns_shared(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ team_rows where[2];
    constexpr int OWN = N / 4, STEP = N * COLUMNS_K * 2, STAGES = SHARED_STEPS(N);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]);
    const int padded = 8 << columns_kind(c.v[0].shape[0]), blocks = (c.v[0].shape[0] + N - 1) / N;
    const int first = blockIdx.x % blocks * N, parts = gridDim.y;
    const int from = columns_part(chunks, blockIdx.y, parts),
              count = columns_part(chunks, blockIdx.y + 1, parts) - from, steps = 4 * count;
    const shared_room r = shared_room_of(N, columns_bytes(&c));
    const int half = warp % 2 * SHARED_TILES, column = warp / 2 * OWN;
    launch_next();
    if (threadIdx.x < 2)
        where[threadIdx.x] = rows_of_team(c, blockIdx.x / blocks, threadIdx.x, 2);
    __syncthreads();
    const warp_weights weights = weights_of_warp(c, where[warp / 4], shared, r, from, count);
    const char *const columns = (const char *)c.scratch + ((int64_t)4 * from * padded + first) * 128;
    /* By the warps that unpack first, as long as the others use the matrix units. */
    const auto fetch_columns = [&](int s) {
        if (s < steps && warp < WARP_WARPS / 2)
#pragma unroll
            for (int i = 16 * threadIdx.x; i < STEP; i += 8 * WARP_THREADS)
                copy_16(shared_address(shared + s % STAGES * STEP + i), columns + (int64_t)s * padded * 128 + i, 1);
    };
    const auto unpack = [&](int s) {
        char *const to = shared + r.operands + s % 2 * SHARED_OPERANDS + warp * TILE_OPERANDS;
        const char *const w = weights.at(s / 4, SHARED_CHUNKS);
        switch (weights.format) {
#define UNPACK_OF(f)                                                                                                   \
    case tile_##f::FORMAT:                                                                                             \
        unpack_step<tile_##f>(w, weights.table, s % 4, to);                                                            \
        break;
            TILE_FORMATS(UNPACK_OF)
        }
    };
    weights.fetch(0, SHARED_CHUNKS);
    weights.fetch(1, SHARED_CHUNKS);
    wait_before();
    const int now = min(rows_now(c, c.v[0]) - first, N);
    if (now <= 0) {
        copies_wait<0>();
        return;
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        fetch_columns(s);
        copies_close();
    }
    copies_wait<STAGES - 2>();
    __syncwarp();
    unpack(0);
    float d[SHARED_TILES][OWN / 2];
#pragma unroll
    for (int t = 0; t < SHARED_TILES; t++)
#pragma unroll
        for (int i = 0; i < OWN / 2; i++)
            d[t][i] = 0.0f;
    for (int s = 0; s < steps; s++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); /* the step and its operands are there, and all have read the ones before */
        fetch_columns(s + STAGES - 1);
        if (s % 4 == 3)
            weights.fetch(s / 4 + 2, SHARED_CHUNKS);
        copies_close();
        const char *const a = shared + r.operands + s % 2 * SHARED_OPERANDS + half * TILE_OPERANDS;
        const uint32_t b = shared_address(shared + s % STAGES * STEP + column * 128);
        if (warp < WARP_WARPS / 2 && s + 1 < steps)
            unpack(s + 1);
        multiply_step<OWN>(a, b, d);
        if (warp >= WARP_WARPS / 2 && s + 1 < steps)
            unpack(s + 1);
    }
    copies_wait<0>();
    if (parts > 1 &&
        !columns_exchange(c, blockIdx.x, gridDim.x, *(float (*)[SHARED_TILES * OWN / 2]) d, columns_scratch(&c)))
        return;
    __syncthreads(); /* the stages have been read: the sums reuse their memory */
    constexpr int stride = SHARED_ROWS + COLUMNS_PAD;
#pragma unroll
    for (int t = 0; t < SHARED_TILES; t++) {
        float *to = (float *)shared + column * stride + (half + t) * TILE_ROWS + lane / 4;
#pragma unroll
        for (int i = 0; i < OWN / 2; i++)
            to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * stride + i % 4 / 2 * 8] = d[t][i];
    }
    __syncthreads();
    columns_finish(c, sums_here{(const float *)shared, stride}, where, 2, 1, 0, now, first);
}

#define COLUMNS_SHARED_OF(N)                                                                                           \
    extern "C" __global__ void __launch_bounds__(WARP_THREADS, 1)                                                      \
        columns_shared_##N(const __grid_constant__ gpu_call c) {                                                       \
        columns_shared<N>(c);                                                                                          \
    }
COLUMNS_SHARED_OF(128)
COLUMNS_SHARED_OF(256)
