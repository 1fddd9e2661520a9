/* expert_warp.cuh: mixture-of-experts products of packed weights (E, N, K) with many pairs of token and expert, by mma.sync: the walk of
 * expert_warp.cu and expert_scaled.cu over tiles of pairs, and the rings of their operands.
 *
 * expert_list_... sorts the pairs by expert, cuts them into tiles of up to N pairs, and converts the activations (expert_list.cuh). Then
 * resident groups walk over the tiles times the blocks of rows. A warp has two tiles of 16 rows, with gate and up one of each, so SwiGLU
 * needs no other warp's sums. It copies its weights to a ring of its own, chunks of 256 columns of K; the group's threads gather the
 * pairs' activations, steps of 128 bytes, to a ring that its warps share. Both run ahead over the tiles, by cp.async. A warp multiplies as
 * many columns as the tile has, rounded up to 8, 16, 32 or 64.
 *
 * P says what a step is:
 *   format: of the weights (tile_formats.cuh)
 *   STEPS: of a chunk
 *   SCALED: 1: four bytes of scales follow the step's 128 bytes of each column
 *   scratch_of(call, most): the layout that expert_list_... leaves
 *   multiply<MOST, N>(weights, table, columns, p, d): d += the warp's two tiles times step p of a chunk, N columns
 *
 * A sum runs over K in order, by one instruction, so neither a pair's place in the list nor the size of its tile changes a bit.
 */
#ifndef SATCHEL_CUDA_EXPERT_WARP_CUH
#define SATCHEL_CUDA_EXPERT_WARP_CUH

#include "expert_list.cuh"
#include "expert_walk.cuh"
#include "expert_warp.h"
#include "hopper.h"

/* The names have the numbers of expert_warp.h. */
static_assert(EXPERT_NARROW == 32 && EXPERT_WARP_WIDE == 64, "pairs of a tile");

/* Where this warp's weights are fetched from: a chunk of a piece of work, ahead of the one that is multiplied. The next piece's expert is
 * loaded a piece ahead, because it is far away. */
template <class P> struct warp_weights {
    typedef typename P::format F;
    const expert_walk &walk;
    const char *from[2]; /* nullptr: no such rows */
    int work, k, next;
    __device__ __forceinline__ explicit warp_weights(const expert_walk &walk_) : walk(walk_) {
        work = blockIdx.x;
        next = work < walk.all ? walk.tiles[work / walk.blocks].x : 0;
        enter();
    }
    __device__ __forceinline__ void enter() {
        const int expert = next, after = work + (int)gridDim.x;
        k = 0;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const gpu_view &w = walk.c.v[walk.e.matrices == 2 ? 2 + part : 2];
            const int rows = walk.row_tile(work % walk.blocks, (int)threadIdx.x / 32, part);
            from[part] = work < walk.all && rows < walk.e.tiles
                             ? (const char *)w.data + expert * w.stride + (int64_t)rows * walk.e.chunks * F::BYTES
                             : nullptr;
        }
        if (after < walk.all)
            next = walk.tiles[after / walk.blocks].x;
    }
    /* to: this warp's place in the stage. */
    __device__ __forceinline__ void fetch(uint32_t to) {
        if (work >= walk.all)
            return;
#pragma unroll
        for (int part = 0; part < 2; part++)
            if (from[part])
                for (int i = 16 * (threadIdx.x % 32); i < F::BYTES; i += 512)
                    copy_16(to + part * F::BYTES + i, from[part] + (int64_t)k * F::BYTES + i, 1);
        if (++k == walk.e.chunks) {
            work += gridDim.x;
            enter();
        }
    }
};

/* Where this thread gathers activations from: a piece of 16 bytes of several pairs of a tile, ahead as well. The next tile and its pairs
 * are loaded while the tile before is gathered. */
template <class P, int MOST> struct warp_columns {
    enum { TURNS = MOST * 8 / (32 * EXPERT_WARPS_FEW) }; /* of the pairs, with four warps */
    const expert_walk &walk;
    const char *const scales; /* of all rows: only where P has them */
    const bool own;           /* an activation row for each pair, not for each token */
    int work, step, count;
    uint32_t rows[TURNS]; /* in chunks */
    int4 tile;
    int pairs[TURNS];
    __device__ __forceinline__ warp_columns(const expert_walk &walk_, const char *scales_)
        : walk(walk_), scales(scales_), own((int64_t)walk_.c.v[1].shape[1] * walk_.c.v[1].shape[2] != walk_.e.width) {
        work = blockIdx.x;
        look(work);
        list();
        enter();
    }
    __device__ __forceinline__ int pair_of(int i) const {
        return (int)threadIdx.x / 8 + i * ((int)blockDim.x / 8);
    }
    __device__ __forceinline__ void look(int at) {
        tile = at < walk.all ? walk.tiles[at / walk.blocks] : make_int4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void list() {
#pragma unroll
        for (int i = 0; i < TURNS; i++)
            pairs[i] = pair_of(i) < tile.z ? walk.list[tile.y + pair_of(i)] : 0;
    }
    __device__ __forceinline__ void enter() {
        step = 0, count = tile.z;
#pragma unroll
        for (int i = 0; i < TURNS; i++)
            rows[i] = (uint32_t)(own ? pairs[i] : pairs[i] / walk.e.each) * (uint32_t)walk.e.chunks;
    }
    __device__ __forceinline__ void fetch(uint32_t to) {
        const int piece = threadIdx.x % 8;
        if (work >= walk.all)
            return;
#pragma unroll
        for (int i = 0; i < TURNS; i++)
            if (const int n = pair_of(i); n < count) {
                const uint64_t at = (uint64_t)rows[i] * P::STEPS + step;
                copy_16(to + n * 128 + ((piece ^ (n & 7)) << 4), walk.rows + at * 128 + 16 * piece, 1);
                if (P::SCALED && piece == 0)
                    copy_4(to + MOST * 128 + 4 * n, scales + at * 4);
            }
        if (step == 0)
            look(work + (int)gridDim.x);
        else if (step == P::STEPS / 2)
            list();
        if (++step == P::STEPS * walk.e.chunks) {
            work += gridDim.x;
            enter();
        }
    }
};

/* Leaves at most stages - 2 groups of copies under way. */
static __device__ __forceinline__ void stage_wait(int stages) {
    if (stages == 2)
        copies_wait<0>();
    else if (stages == 3)
        copies_wait<1>();
    else
        copies_wait<2>();
}

/* Both rings: what is fetched, and the stages that are multiplied next. */
template <class P, int MOST> struct warp_rings {
    typedef typename P::format F;
    warp_weights<P> weights;
    warp_columns<P, MOST> columns;
    const expert_warp_room r;
    char *const shared, *const own;
    uint32_t *const table;
    int weight, column, weight_to, column_to; /* stages: multiplied, and filled next */
    __device__ __forceinline__ warp_rings(const expert_walk &walk, const char *scales, char *shared_)
        : weights(walk), columns(walk, scales),
          r(expert_warp_room_of(MOST, P::SCALED, walk.warps, F::BYTES, launched_bytes())), shared(shared_),
          own(shared_ + r.weights + threadIdx.x / 32 * (2 * F::BYTES)),
          table((uint32_t *)(shared_ + r.tables) + threadIdx.x / 32 * (2 * COLUMNS_TABLE / 4)) {
        weight = column = weight_to = column_to = 0;
        while (weight_to < r.weight_stages - 1)
            fetch_weights();
        while (column_to < r.column_stages - 1) {
            fetch_columns();
            copies_close();
        }
    }
    __device__ __forceinline__ void fetch_weights() {
        weights.fetch(shared_address(own + weight_to * r.weight));
        weight_to++;
    }
    __device__ __forceinline__ void fetch_columns() {
        columns.fetch(shared_address(shared + column_to * r.column));
        column_to++;
    }
    /* d += the next step, p of a chunk's. A stage is filled again after all have read it. */
    template <int N> __device__ __forceinline__ void step(int p, float (&d)[2][N / 2]) {
        stage_wait(r.column_stages);
        __syncthreads();
        column_to = column_to == r.column_stages ? 0 : column_to;
        fetch_columns();
        if (p == 0) {
            weight_to = weight_to == r.weight_stages ? 0 : weight_to;
            fetch_weights();
        }
        copies_close();
        P::template multiply<MOST, N>(own + weight * r.weight, table, shared + column * r.column, p, d);
        column = column + 1 == r.column_stages ? 0 : column + 1;
        if (p == P::STEPS - 1)
            weight = weight + 1 == r.weight_stages ? 0 : weight + 1;
    }
};

template <class P, int MOST, int N>
static __device__ __forceinline__ void expert_sums(const expert_walk &walk, warp_rings<P, MOST> &rings,
                                                   const int4 &tile, int block) {
    float d[2][N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[0][i] = d[1][i] = 0.0f;
    for (int s = 0; s < P::STEPS * walk.e.chunks; s++)
        rings.template step<N>(s % P::STEPS, d);
    expert_store<N>(walk, tile, block, (int)threadIdx.x / 32, d);
}

template <class P, int MOST> static __device__ __forceinline__ void expert_warp(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    launch_next();
    wait_before();
    const expert_scratch s = P::scratch_of(&c, MOST);
    const expert_walk walk(c, s, (int)blockDim.x / 32);
    expert_none(walk);
    int work = blockIdx.x;
    if (work >= walk.all)
        return;
    warp_rings<P, MOST> rings(walk, (const char *)(c.scratch + s.scales), shared);
    int4 tile = walk.tiles[work / walk.blocks];
    for (; work < walk.all; work += gridDim.x) {
        const int after = work + (int)gridDim.x, block = work % walk.blocks;
        const int4 next = after < walk.all ? walk.tiles[after / walk.blocks] : tile;
        if (MOST > 32 && tile.z > 32)
            expert_sums<P, MOST, MOST>(walk, rings, tile, block);
        else if (tile.z > 16)
            expert_sums<P, MOST, 32>(walk, rings, tile, block);
        else if (tile.z > 8)
            expert_sums<P, MOST, 16>(walk, rings, tile, block);
        else
            expert_sums<P, MOST, 8>(walk, rings, tile, block);
        tile = next;
    }
    copies_wait<0>();
}

/* The bounds give as many registers as three groups of four warps may have, which expert_warp_shape_of() counts on, and with 64 pairs
 * as two. */
#define EXPERT_WARP_32(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(3 * 32 * EXPERT_WARPS_FEW, 1) name(const __grid_constant__ gpu_call c)
#define EXPERT_WARP_64(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(32 * EXPERT_WARPS, 1) name(const __grid_constant__ gpu_call c)

#endif
