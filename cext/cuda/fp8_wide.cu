/* fp8_wide.cu: products of FP8 weights with many columns of FP8 activations (from fp8_quantize) by wgmma of sm_90a.
 *
 * A group has up to three consumer warpgroups of 64 slots (rows of the weights) and one producer warpgroup, which loads for
 * each 128 of K the slots' blocks, in the file's layout, and the columns into a ring. A lane reads its rows' codes from there
 * into registers, wgmma's A operand. The tensor core accumulates with about 14 bits, so each 128 of K are summed from zero and
 * then added in float32, times both scales. Groups loop over the tiles of y. With a single tile of columns, the groups of a
 * cluster split K and add their sums in order of the parts.
 */
#include "columns_sums.cuh"
#include "hopper.h"
#include "fp8.cuh"
#include "fp8_wgmma.h"

struct fp8_ring {
    char *at;
    uint32_t bars;
    int bytes, stages, stage, phase;
    __device__ __forceinline__ uint32_t full() const {
        return bars + 16 * stage;
    }
    __device__ __forceinline__ uint32_t empty() const {
        return bars + 16 * stage + 8;
    }
    __device__ __forceinline__ char *here() const {
        return at + stage * bytes;
    }
    __device__ __forceinline__ void next() {
        if (++stage == stages)
            stage = 0, phase ^= 1;
    }
};

/* Order of tiles: columns vary fastest, so groups that run at the same time share the weights' rows. */
struct fp8_walk {
    int teams, parts, rank, from, to, across, tiles, now;
    __device__ __forceinline__ int slot(int tile) const {
        return tile / across * 64 * teams;
    }
};

/* Loads a block of each of a tile's rows in pieces of 16 bytes: a loader thread loads one of nine pieces of every 14th row.
 * It reads the rows' addresses seven at a time, ahead of use. */
static __device__ __forceinline__ void fp8_pieces(uint32_t to, const uint64_t *rows, int all, int block) {
    enum { STEP = FP8_LOADERS / FP8_PIECES, AHEAD = 7 };
    const int first = threadIdx.x / FP8_PIECES, piece = threadIdx.x % FP8_PIECES;
    if (first >= STEP)
        return;
    to += 16 * threadIdx.x;
    for (int r = first; r < all; r += STEP * AHEAD, to += STEP * AHEAD * FP8_WINDOW) {
        uint64_t row[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            row[i] = r + i * STEP < all ? rows[r + i * STEP] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const uint64_t at = row[i] + (uint32_t)block * FP8_BYTES;
            if (row[i])
                copy_part(to + i * STEP * FP8_WINDOW, (at & ~15ull) + 16 * piece,
                          piece < FP8_PIECES - 1 ? 16 : 4 + ((int)at & 15));
        }
    }
}

/* Producer warpgroup: its threads load the rows' blocks in pieces of 16 bytes; thread 0 also loads the columns. */
template <int N, int HALVES>
static __device__ __forceinline__ void fp8_load(const gpu_call &c, const fp8_walk &walk, fp8_ring ring,
                                                uint64_t *rows) {
    constexpr int ITEM = N * (FP8_K * HALVES + 4);
    const int blocks = fp8_blocks(&c), all = walk.teams * 64;
    bool before = true;
    for (int tile = blockIdx.x / walk.parts; tile < walk.tiles; tile += gridDim.x / walk.parts) {
        const char *columns = (const char *)c.scratch + (int64_t)(tile % walk.across) * blocks * ITEM;
        asm volatile("bar.sync 1, 128;" ::: "memory");
        for (int i = threadIdx.x; i < all; i += FP8_LOADERS)
            rows[i] = fp8_row_at(c, walk.slot(tile) + i);
        asm volatile("bar.sync 1, 128;" ::: "memory");
        for (int k = walk.from; k < walk.to; k++, ring.next()) {
            const uint32_t at = shared_address(ring.here());
            barrier_wait(ring.empty(), ring.phase ^ 1);
            fp8_pieces(at + ITEM, rows, all, k);
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.full()) : "memory");
            if (threadIdx.x == 0) {
                if (before)
                    wait_before();
                before = false;
                barrier_expect(ring.full(), ITEM);
                bulk_load(at, columns + (int64_t)k * ITEM, ITEM, ring.full());
            }
        }
    }
    copies_wait<0>();
}

/* sum += a block of this lane's rows, whose windows begin at `row`, times N columns. */
template <int N, int HALVES, bool E5M2>
static __device__ __forceinline__ void fp8_step(const char *item, const char *const (&row)[2], float (&sum)[N / 2]) {
    const int t = threadIdx.x % 4;
    const float step[2] = {*(const float *)row[0], *(const float *)row[1]};
    const uint64_t b = operand_at(shared_address(item), 1024, 16);
    uint32_t a[4][4];
    float d[N / 2];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[i][r] = *(const uint32_t *)(row[r % 2] + 4 + 4 * t + 32 * i + r / 2 * 16);
    products_open();
#pragma unroll
    for (int i = 0; i < 4 * HALVES; i++)
        product_fp8<E5M2>(d, a[i % 4], b + i / 4 * (N * FP8_K / 16) + 2 * (i % 4), i);
    products_close();
    products_wait<0>();
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 scale = *(const float2 *)(item + HALVES * N * FP8_K + 4 * (8 * j + 2 * t));
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[4 * j + e] = fmaf(d[4 * j + e], step[e / 2] * (e % 2 ? scale.y : scale.x), sum[4 * j + e]);
    }
}

static __device__ __forceinline__ float number_of(uint32_t address, uint32_t rank) {
    float x;
    asm volatile(
        "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %1, %2;\n ld.shared::cluster.f32 %0, [there];\n}"
        : "=f"(x)
        : "r"(address), "r"(rank)
        : "memory");
    return x;
}

/* Adds the sums of a cluster's groups: each group finishes every parts-th run of eight columns. All threads of a cluster
 * call it. */
template <int N>
static __device__ __forceinline__ void fp8_meet(const gpu_call &c, const fp8_walk &walk, float *room, int slot,
                                                const float (&sum)[N / 2]) {
    const int thread = threadIdx.x - FP8_LOADERS, threads = walk.teams * 128;
    asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory"); /* the ring has been read: the sums reuse its memory */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        room[i * threads + thread] = sum[i];
    cluster_sync();
    for (int j = walk.rank; j < N / 8; j += walk.parts) {
        float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int part = 0; part < walk.parts; part++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[e] += number_of(shared_address(room + (4 * j + e) * threads + thread), part);
        fp8_finish<true>(c, slot, 8 * j + 2 * (thread % 4), walk.now, y);
    }
    cluster_sync(); /* others read this group's memory */
}

/* Consumer warpgroup: multiplies 64 slots of each tile. */
template <int N, int HALVES, bool E5M2>
static __device__ __forceinline__ void fp8_multiply(const gpu_call &c, const fp8_walk &walk, fp8_ring ring) {
    constexpr int ITEM = N * (FP8_K * HALVES + 4);
    char *room = ring.at;
    const int lane = threadIdx.x % 32, in = (threadIdx.x - FP8_LOADERS) / 32 * TILE_ROWS, g = lane / 4;
    for (int tile = blockIdx.x / walk.parts; tile < walk.tiles; tile += gridDim.x / walk.parts) {
        const int slot = walk.slot(tile) + in, token = tile % walk.across * N;
        const int low[2] = {(int)fp8_row_at(c, slot + g) & 15, (int)fp8_row_at(c, slot + g + 8) & 15};
        float sum[N / 2] = {};
        if (walk.parts == 1) /* all loads together, behind which the ring fills */
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                sum[i] = fp8_more(c, slot + g + i % 4 / 2 * 8, token + i / 4 * 8 + 2 * (lane % 4) + i % 2, walk.now);
        for (int k = walk.from; k < walk.to; k++) {
            const char *item = ring.here(), *own = item + ITEM + (in + g) * FP8_WINDOW;
            const char *const row[2] = {own + (low[0] + 4 * k & 15), own + 8 * FP8_WINDOW + (low[1] + 4 * k & 15)};
            barrier_wait(ring.full(), ring.phase);
            fp8_step<N, HALVES, E5M2>(item, row, sum);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(ring.empty());
            ring.next();
        }
        if (walk.parts > 1) {
            fp8_meet<N>(c, walk, (float *)room, slot, sum);
            return;
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float y[4] = {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]};
            fp8_finish<false>(c, slot, token + 8 * j + 2 * (lane % 4), walk.now, y);
        }
    }
}

template <int N, int HALVES> static __device__ __forceinline__ void fp8_wide(const gpu_call &c) {
    extern __shared__ char shared[];
    char *memory = shared + ((1024 - (shared_address(shared) & 1023)) & 1023);
    fp8_walk walk = {(int)blockDim.x / 128 - 1, (int)cluster_size(), 0, 0, 0, 1, 0, 0};
    const int blocks = fp8_blocks(&c), stage = fp8_stage(N, HALVES, walk.teams), stages = fp8_stages(stage);
    fp8_ring ring = {memory, shared_address(memory) + stages * stage, stage, stages, 0, 0};
    walk.rank = (int)blockIdx.x % walk.parts;
    walk.from = blocks * walk.rank / walk.parts, walk.to = blocks * (walk.rank + 1) / walk.parts;
    launch_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++)
            barrier_init(ring.bars + 16 * i, FP8_LOADERS + 1), barrier_init(ring.bars + 16 * i + 8, 4 * walk.teams);
        barriers_made();
    }
    __syncthreads();
    /* with one tile, weights are loaded before the previous kernel ends */
    if (c.v[0].shape[0] > N || threadIdx.x >= FP8_LOADERS) {
        wait_before();
        walk.now = rows_now(c, c.v[0]);
        walk.across = max(1, (walk.now + N - 1) / N);
    }
    walk.tiles = (int)((fp8_slots(&c) + 64 * walk.teams - 1) / (64 * walk.teams)) * walk.across;
    if (threadIdx.x < FP8_LOADERS) {
        registers_give<56>();
        fp8_load<N, HALVES>(c, walk, ring, (uint64_t *)(memory + stages * stage + 16 * FP8_STAGES));
        if (walk.parts > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        registers_take<152>();
        c.v[2].format == FP8_E5M2 ? fp8_multiply<N, HALVES, true>(c, walk, ring)
                                  : fp8_multiply<N, HALVES, false>(c, walk, ring);
    }
}

#define FP8_WIDE_OF(N)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(512, 1) fp8_wide_##N(const __grid_constant__ gpu_call c) {            \
        fp8_wide<N, 2>(c);                                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 1) fp8_wide_fast_##N(const __grid_constant__ gpu_call c) {       \
        fp8_wide<N, 1>(c);                                                                                             \
    }
FP8_WIDE_OF(32)
FP8_WIDE_OF(64)
FP8_WIDE_OF(128)
