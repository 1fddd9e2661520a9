/* columns_warp.cu: products of packed weights with more than four columns, in bf16 with float32 accumulators, by mma.sync: for
 * devices that have no wgmma. Few columns and prompts alike.
 *
 * columns_convert brings the activations, or their norm, in order. A group has 128 or 256 rows, one or two tiles of 16 for each of its
 * eight warps, and up to 64 columns. A warp dequantizes its rows in registers, the A operand, and multiplies all columns of the
 * block, which the group's warps share in shared memory; so a weight is unpacked once for a block of columns. Weights (chunks of 256 columns of
 * K, for each warp its own) and activations (steps of 64) come by cp.async through two rings. Where rows and columns make too
 * few groups, `parts` of them split K: each leaves its sums in scratch, and the last one adds them in the order of the parts.
 * A sum's order depends on the matrices, the number of columns that the call is made for and the device.
 */
#include "columns_convert.cuh"
#include "columns_exchange.cuh"
#include "columns_step.cuh"
#include "columns_sums.cuh"
#include "columns_warp.h"
#include "hopper.h"
#include "port.h"

template <int N, int TILES> static __device__ __forceinline__ void columns_warp(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ team_rows where[COLUMNS_TEAMS];
    constexpr int TEAMS = 2 * TILES, STEP = N * COLUMNS_K * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]);
    const int padded = 8 << columns_kind(c.v[0].shape[0]), blocks = (c.v[0].shape[0] + N - 1) / N;
    const int block = blockIdx.x % blocks, first = block * N, parts = gridDim.y;
    const int from = columns_part(chunks, blockIdx.y, parts),
              count = columns_part(chunks, blockIdx.y + 1, parts) - from;
    const warp_room r = warp_room_of(N, TILES, columns_bytes(&c));
    launch_next();
    if (threadIdx.x < TEAMS)
        where[threadIdx.x] = rows_of_team(c, blockIdx.x / blocks, threadIdx.x, TEAMS);
    __syncthreads();
    const team_rows team = where[warp * TILES / 4];
    const int format = (int)(c.v[team.which].format & 0xFFFFFFu), bytes = packed_bytes(format),
              apart = r.weight / (8 * TILES);
    char *const own = shared + r.weights + warp * TILES * apart;
    uint32_t *const table = (uint32_t *)(shared + r.tables) + warp * TILES * (COLUMNS_TABLE / 4);
    const char *data[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int in = (warp * TILES + t) % 4;
        data[t] = in * TILE_ROWS < team.left ? (const char *)c.v[team.which].data +
                                                   ((int64_t)(team.row / TILE_ROWS + in) * chunks + from) * bytes
                                             : nullptr;
    }
    const auto fetch_weights = [&](int k) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
            if (data[t])
                for (int i = 16 * lane; i < bytes; i += 512)
                    copy_16(shared_address(own + k % r.stages * r.weight + t * apart + i),
                            data[t] + (int64_t)k * bytes + i, 1);
    };
    const char *columns = (const char *)c.scratch + ((int64_t)4 * from * padded + first) * 128;
    const auto fetch_columns = [&](int s) {
        for (int i = 16 * threadIdx.x; i < STEP; i += 16 * WARP_THREADS)
            copy_16(shared_address(shared + s % WARP_STEPS * STEP + i), columns + (int64_t)s * padded * 128 + i, 1);
    };
    for (int k = 0; k < r.stages - 1 && k < count; k++)
        fetch_weights(k);
    wait_before();
    const int now = min(rows_now(c, c.v[0]) - first, N), steps = 4 * count;
    if (now <= 0) {
        copies_wait<0>();
        return;
    }
#pragma unroll
    for (int s = 0; s < WARP_STEPS - 1; s++) {
        if (s < steps)
            fetch_columns(s);
        copies_close();
    }
    float d[TILES][N / 2];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            d[t][i] = 0.0f;
    for (int s = 0; s < steps; s++) {
        copies_wait<WARP_STEPS - 2>();
        __syncthreads(); /* the step has come, and all have read the one before */
        if (s % 4 == 0 && s / 4 + r.stages - 1 < count)
            fetch_weights(s / 4 + r.stages - 1);
        if (s + WARP_STEPS - 1 < steps)
            fetch_columns(s + WARP_STEPS - 1);
        copies_close();
        const char *w = own + s / 4 % r.stages * r.weight;
        const uint32_t b = shared_address(shared + s % WARP_STEPS * STEP);
        switch (format) {
#define STEP_OF(f)                                                                                                     \
    case tile_##f::FORMAT:                                                                                             \
        warp_step<tile_##f, N, TILES>(w, apart, table, b, s % 4, d);                                                   \
        break;
            TILE_FORMATS(STEP_OF)
        }
    }
    copies_wait<0>();
    if (parts > 1 && !columns_exchange(c, blockIdx.x, gridDim.x, *(float (*)[TILES * N / 2]) d, columns_scratch(&c)))
        return;
    __syncthreads(); /* the stages have been read: the sums reuse their memory */
    constexpr int stride = TEAMS * COLUMNS_ROWS + COLUMNS_PAD;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float *to = (float *)shared + (warp * TILES + t) * TILE_ROWS + lane / 4;
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            to[(i / 4 * 8 + lane % 4 * 2 + i % 2) * stride + i % 4 / 2 * 8] = d[t][i];
    }
    __syncthreads();
    columns_finish(c, sums_here{(const float *)shared, stride}, where, TEAMS, 1, 0, now, first);
}

#define COLUMNS_WARP(N, TILES)                                                                                         \
    extern "C" __global__ void __launch_bounds__(WARP_THREADS, N > 32 ? 1 : 2)                                         \
        columns_warp_##N##_##TILES(const __grid_constant__ gpu_call c) {                                               \
        columns_warp<N, TILES>(c);                                                                                     \
    }
COLUMNS_WARP(8, 1)
COLUMNS_WARP(16, 1)
COLUMNS_WARP(32, 1)
COLUMNS_WARP(64, 1)
COLUMNS_WARP(64, 2)
