/* expert_tiles.cu: mixture-of-experts products of packed weights (E, N, K) with many pairs of token and expert, for sm_90, in
 * bf16 with float32 accumulators.
 *
 * expert_list_N sorts the pairs by expert in its first cluster and cuts them into tiles of up to N pairs, while the other groups
 * convert the activations to bf16. The heads of head_linear are experts that every token has. In expert_tiles_N resident groups
 * walk over the tiles times the blocks of 256 rows. One warp copies packed weights, three gather the pairs' activations, into two
 * rings of stages that run ahead over the tiles. Eight warps dequantize 32 rows each to bf16 in registers (columns_values.cuh)
 * and multiply: a warp by itself up to 32 pairs, as warpgroups beyond that. With gate and up, a warp has 16 rows of each, so
 * SwiGLU needs no other thread's sums.
 *
 * A sum runs over K in order. Which instruction multiplies depends on the pairs of the expert in expert_tiles_128 (up to 32 or
 * more), never on a pair's place in the list: the order within an expert, which differs from run to run, changes no bit.
 */

#include "columns_fetch.cuh"
#include "columns_values.cuh"
#include "expert_list.cuh"
#include "expert_walk.cuh"
#include "wgmma_columns.h"

EXPERT_LIST(32)
EXPERT_LIST(128)

/* --- fetching */

/* Copies packed weights: one warp, a lane for each tile of 16 rows. */
template <class F> static __device__ __forceinline__ void expert_weights(const expert_walk &walk, columns_ring ring) {
    const int lane = threadIdx.x % 32, part = lane % 2;
    const gpu_view &w = walk.c.v[walk.e.matrices == 2 ? 2 + part : 2];
    for (int work = blockIdx.x; work < walk.all; work += gridDim.x) {
        const int expert = walk.tiles[work / walk.blocks].x;
        const int rows = walk.row_tile(work % walk.blocks, lane / 2, part);
        const bool mine = lane < 2 * EXPERT_WARPS && rows < walk.e.tiles;
        const uint32_t all = __popc(__ballot_sync(~0u, mine)) * F::BYTES;
        const char *data = (const char *)w.data + expert * w.stride + (int64_t)rows * walk.e.chunks * F::BYTES;
        for (int k = 0; k < walk.e.chunks; k++, data += F::BYTES, ring.next()) {
            if (lane < RING_LANES)
                barrier_wait(ring.empty(), ring.phase ^ 1);
            if (lane == 0)
                barrier_expect(ring.full(), all);
            __syncwarp();
            if (mine)
                bulk_load(ring.here() + lane * F::BYTES, data, F::BYTES, ring.full());
        }
    }
}

/* Gathers activations: one of three warps, four pairs at a time; pairs that a tile lacks are left as they are. */
template <int MOST>
static __device__ __forceinline__ void expert_columns(const expert_walk &walk, columns_ring ring, int which) {
    enum { WARPS = 3, TURNS = (MOST / 4 + WARPS - 1) / WARPS };
    const int lane = threadIdx.x % 32, piece = lane % 8, below = lane / 8;
    const bool own = (int64_t)walk.c.v[1].shape[1] * walk.c.v[1].shape[2] != walk.e.width;
    for (int work = blockIdx.x; work < walk.all; work += gridDim.x) {
        const int4 tile = walk.tiles[work / walk.blocks];
        uint32_t rows[TURNS]; /* in chunks */
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int n = 4 * (WARPS * i + which) + below, pair = n < tile.z ? walk.list[tile.y + n] : 0;
            rows[i] = (uint32_t)(own ? pair : pair / walk.e.each) * (uint32_t)walk.e.chunks;
        }
        const char *from = walk.rows + 16 * piece;
        for (int step = 0; step < 4 * walk.e.chunks; step++, from += 128, ring.next()) {
            barrier_wait(ring.empty(), ring.phase ^ 1);
#pragma unroll
            for (int i = 0; i < TURNS; i++) {
                const int n = 4 * (WARPS * i + which) + below;
                if (n < tile.z)
                    copy_16(ring.here() + n * 128 + ((piece ^ (n & 7)) << 4), from + (uint64_t)rows[i] * (CHUNK * 2),
                            1);
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.full()) : "memory");
        }
    }
    copies_wait<0>();
}

/* --- multiplying */

template <int N> static __device__ __forceinline__ void expert_clear(float (&d)[2][N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[0][i] = d[1][i] = 0.0f;
}

/* The scales of rows g and g + 8 for stretches 2 p and 2 p + 1. */
struct expert_scales {
    uint4 low, high;
    __device__ __forceinline__ expert_scales(const uint32_t *table, int lane, int p) {
        low = *(const uint4 *)(table + lane / 4 * 16 + 4 * p);
        high = *(const uint4 *)(table + (lane / 4 + 8) * 16 + 4 * p);
    }
    /* Both operands of stretch 2 p + j. */
    template <class F>
    __device__ __forceinline__ void operands(const uint32_t (&word)[4], int j, uint32_t (&a)[2][4]) const {
        const uint2 scale[2] = {j ? make_uint2(low.z, low.w) : make_uint2(low.x, low.y),
                                j ? make_uint2(high.z, high.w) : make_uint2(high.x, high.y)};
        operand_of<F>(word, j, 0, scale, a[0]);
        operand_of<F>(word, j, 1, scale, a[1]);
    }
};

/* The words and scales of stretches 2 p and 2 p + 1 of one of a warp's two parts of a chunk. */
template <class F> struct expert_words {
    uint32_t word[2][4];
    expert_scales scales;
    __device__ __forceinline__ expert_words(const char *w, const uint32_t *table, int part, int p)
        : scales(table + part * (COLUMNS_TABLE / 4), threadIdx.x % 32, p) {
        columns_words<F>(w + part * F::BYTES, threadIdx.x % 32, p, word);
    }
};

/* Columns of 16 pairs (x[i]: step i of 16 elements; of 8 pairs x[0] has both) from pair n on, steps 2 j and 2 j + 1. */
template <int N> static __device__ __forceinline__ void expert_load(uint32_t stage, int n, int j, uint32_t (&x)[2][4]) {
    const int lane = threadIdx.x % 32, row = lane % 8 + (N > 8 ? lane / 16 * 8 : 0), half = lane / 8 % 2,
              more = N > 8 ? 0 : lane / 16;
#pragma unroll
    for (int i = 0; i < (N > 8 ? 2 : 1); i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                     : "r"(stage + (n + row) * 128 + (((2 * (2 * j + i + more) + half) ^ (row & 7)) << 4))
                     : "memory");
}

/* d += an operand times columns of N pairs from pair n on (of 8: step i of both), as expert_load() has loaded them. */
template <int N>
static __device__ __forceinline__ void expert_add(float (&d)[N / 2], const uint32_t (&a)[4], const uint32_t (&x)[2][4],
                                                  int n, int i) {
    if constexpr (N == 8) {
        mma_bf16(d, a[0], a[1], a[2], a[3], x[0][2 * i], x[0][2 * i + 1]);
    } else {
        mma_bf16(d + n / 2, a[0], a[1], a[2], a[3], x[i][0], x[i][1]);
        mma_bf16(d + n / 2 + 4, a[0], a[1], a[2], a[3], x[i][2], x[i][3]);
    }
}

/* A step of 64 elements of up to 16 pairs. The words of the next part are loaded while one multiplies; `next` is the first's. */
template <class F, int N>
static __device__ __forceinline__ void expert_step(const char *w, const uint32_t *table, int p, columns_ring &columns,
                                                   expert_words<F> &next, float (&d)[2][N / 2]) {
    uint32_t x[2][2][4];
    barrier_wait(columns.full(), columns.phase);
    expert_load<N>(columns.here(), 0, 0, x[0]);
    expert_load<N>(columns.here(), 0, 1, x[1]);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        const expert_words<F> words = next;
        if (2 * p + b < 7)
            next = expert_words<F>(w, table, 1 - b, p + b);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t a[2][4];
            words.scales.template operands<F>(words.word[j], j, a);
            expert_add<N>(d[b], a[0], x[j], 0, 0);
            expert_add<N>(d[b], a[1], x[j], 0, 1);
        }
    }
}

/* The same of up to 32 pairs, whose columns are loaded as they are multiplied. */
template <class F, int N>
static __device__ __forceinline__ void expert_wide_step(const char *w, const uint32_t *table, int p,
                                                        columns_ring &columns, float (&d)[2][N / 2]) {
    const expert_words<F> words[2] = {{w, table, 0, p}, {w, table, 1, p}};
    barrier_wait(columns.full(), columns.phase);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[2][2][4];
        words[0].scales.template operands<F>(words[0].word[j], j, a[0]);
        words[1].scales.template operands<F>(words[1].word[j], j, a[1]);
#pragma unroll
        for (int n = 0; n < N; n += 16) {
            uint32_t x[2][4];
            expert_load<N>(columns.here(), n, j, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                expert_add<N>(d[i % 2], a[i % 2][i / 2], x, n, i / 2);
        }
    }
}

/* A tile's sums of up to N pairs, by this warp alone. */
template <class F, int N>
static __device__ __forceinline__ void expert_by_warp(columns_ring &weights, columns_ring &columns, const char *own,
                                                      uint32_t *table, int chunks, float (&d)[2][N / 2]) {
    expert_clear<N>(d);
    for (int k = 0; k < chunks; k++) {
        const char *w = own + weights.stage * weights.bytes;
        barrier_wait(weights.full(), weights.phase);
        store_scales<F>(w, table);
        store_scales<F>(w + F::BYTES, table + COLUMNS_TABLE / 4);
        __syncwarp();
        if constexpr (N <= 16) {
            expert_words<F> next(w, table, 0, 0);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                expert_step<F, N>(w, table, p, columns, next, d);
                __syncwarp();
                ring_release(columns);
            }
        } else {
#pragma unroll
            for (int p = 0; p < 4; p++) {
                expert_wide_step<F, N>(w, table, p, columns, d);
                __syncwarp();
                ring_release(columns);
            }
        }
        ring_release(weights);
    }
}

/* A tile's sums of up to 128 pairs, by warpgroups. The words and scales of the next part are loaded while one multiplies, and the
 * next chunk's tables are made in the middle of a chunk. A stage that wgmma reads is released one step later. */
template <class F>
static __device__ __forceinline__ void expert_by_group(columns_ring &weights, columns_ring &columns, const char *own,
                                                       uint32_t *tables, int chunks, float (&d)[2][64]) {
    enum { TABLE = 2 * COLUMNS_TABLE / 4 };
    columns_ring done = columns, after = weights;
    expert_clear<EXPERT_WIDE>(d);
    barrier_wait(weights.full(), weights.phase);
    const char *w = own + weights.stage * weights.bytes;
    leave_scales<F>(w, tables);
    leave_scales<F>(w + F::BYTES, tables + COLUMNS_TABLE / 4);
    expert_words<F> next(w, tables, 0, 0);
    for (int k = 0; k < chunks; k++) {
        const bool last = k + 1 == chunks;
        const uint32_t *table = tables + k % 2 * TABLE;
        uint32_t *other = tables + (k + 1) % 2 * TABLE;
        after.next();
        const char *follows = own + after.stage * after.bytes;
#pragma unroll
        for (int s = 0; s < 8; s++) { /* step s / 2 of 64 elements, part s % 2 */
            const int b = s % 2;
            const uint32_t at = operand_low(columns.here(), 16);
            const expert_words<F> words = next;
            if (s < 7)
                next = expert_words<F>(w, table, (s + 1) % 2, (s + 1) / 2);
            else if (!last)
                next = expert_words<F>(follows, other, 0, 0);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t a[2][4];
                words.scales.template operands<F>(words.word[j], j, a);
                if (b == 0 && j == 0) {
                    barrier_wait(columns.full(), columns.phase);
                    shared_to_async(); /* the gathered rows were written by ordinary copies */
                }
                products_open();
                product_columns(d[b], a[0], at + 4 * j);
                product_columns(d[b], a[1], at + 4 * j + 2);
                products_close();
                products_wait<1>();
                if (b == 0 && j == 0 && k + s)
                    ring_release(done);
            }
            if (b == 1)
                columns.next();
            if (s == 3 && !last) {
                barrier_wait(after.full(), after.phase);
                leave_scales<F>(follows, other);
            }
            if (s == 5 && !last)
                leave_scales<F>(follows + F::BYTES, other + COLUMNS_TABLE / 4);
        }
        __syncwarp();
        ring_release(weights);
        w = follows;
    }
    products_wait<0>();
    ring_release(done);
}

template <class F, int N>
static __device__ __forceinline__ void expert_tile_by_warp(const expert_walk &walk, const int4 &tile, int block,
                                                           columns_ring &weights, columns_ring &columns,
                                                           const char *own, uint32_t *table) {
    float d[2][N / 2];
    expert_by_warp<F, N>(weights, columns, own, table, walk.e.chunks, d);
    expert_store<N>(walk, tile, block, (int)threadIdx.x / 32 - 4, d);
}

template <class F, int MOST>
static __device__ __forceinline__ void expert_multiply(const expert_walk &walk, columns_ring weights,
                                                       columns_ring columns, const char *own, uint32_t *table) {
    for (int work = blockIdx.x; work < walk.all; work += gridDim.x) {
        const int4 tile = walk.tiles[work / walk.blocks];
        const int block = work % walk.blocks;
        if (MOST > EXPERT_NARROW && tile.w > EXPERT_NARROW) {
            float d[2][EXPERT_WIDE / 2];
            expert_by_group<F>(weights, columns, own, table, walk.e.chunks, d);
            expert_store<EXPERT_WIDE>(walk, tile, block, (int)threadIdx.x / 32 - 4, d);
        } else if (tile.z > 16) {
            expert_tile_by_warp<F, 32>(walk, tile, block, weights, columns, own, table);
        } else if (tile.z > 8) {
            expert_tile_by_warp<F, 16>(walk, tile, block, weights, columns, own, table);
        } else {
            expert_tile_by_warp<F, 8>(walk, tile, block, weights, columns, own, table);
        }
    }
}

template <class F, int MOST> static __device__ __forceinline__ void expert_tiles(const gpu_call &c) {
    extern __shared__ char shared[];
    char *memory = shared + ((1024 - (shared_address(shared) & 1023)) & 1023);
    const expert_room r = expert_room_of(MOST, F::BYTES);
    const uint32_t base = shared_address(memory);
    const columns_ring weights = {base + r.weights, base + r.bars, r.weight, r.weight_stages, 0, 0};
    const columns_ring columns = {base, base + r.bars + 128, r.column, r.column_stages, 0, 0};
    const int warp = threadIdx.x / 32;
    launch_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < r.weight_stages; i++)
            barrier_init(weights.bars + 16 * i, 1), barrier_init(weights.bars + 16 * i + 8, EXPERT_WARPS * RING_LANES);
        for (int i = 0; i < r.column_stages; i++)
            barrier_init(columns.bars + 16 * i, 3 * 32 /* lanes that gather */),
                barrier_init(columns.bars + 16 * i + 8, EXPERT_WARPS * RING_LANES);
        barriers_made();
    }
    __syncthreads();
    wait_before();
    const expert_walk walk(c, expert_scratch_of(&c, MOST), EXPERT_WARPS);
    expert_none(walk);
    if (warp < 4) {
        registers_give<MOST == EXPERT_WIDE ? 56 : 32>();
        if (warp == 0)
            expert_weights<F>(walk, weights);
        else
            expert_columns<MOST>(walk, columns, warp - 1);
    } else {
        registers_take<MOST == EXPERT_WIDE ? 224 : 104>();
        expert_multiply<F, MOST>(walk, weights, columns, memory + r.weights + (warp - 4) * 2 * F::BYTES,
                                 (uint32_t *)(memory + r.tables) + (warp - 4) * (expert_tables(MOST) / 4));
    }
}

#define EXPERT_TILES(f)                                                                                                \
    extern "C" __global__ void __launch_bounds__(EXPERT_THREADS, 1)                                                    \
        expert_tiles_128_##f(const __grid_constant__ gpu_call c) {                                                     \
        expert_tiles<tile_##f, EXPERT_WIDE>(c);                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(EXPERT_THREADS, 2)                                                    \
        expert_tiles_32_##f(const __grid_constant__ gpu_call c) {                                                      \
        expert_tiles<tile_##f, EXPERT_NARROW>(c);                                                                      \
    }
#ifndef EXPERT_FORMATS
#define EXPERT_FORMATS TILE_FORMATS
#endif
EXPERT_FORMATS(EXPERT_TILES)
