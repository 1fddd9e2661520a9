/* expert_list.cuh: the first launch of a mixture's products of many pairs of token and expert, for expert_tiles.cu, expert_warp.cu and
 * expert_scaled.cu: sorts the pairs by expert, cuts them into tiles, and converts the activations, as ROWS says. expert_tiles.h has the
 * layout that it leaves in scratch.
 *
 * The first groups sort: a cluster of them on Hopper, one elsewhere. The others convert.
 */
#ifndef SATCHEL_CUDA_EXPERT_LIST_CUH
#define SATCHEL_CUDA_EXPERT_LIST_CUH

#include "columns_sums.cuh"
#include "columns_values.cuh"
#include "expert_tiles.h"
#include "experts.cuh"

/* Sum of the values of threads before this one, and of all; room: 33 words of shared memory. */
static __device__ __forceinline__ int sum_before(int x, int *room, int &all) {
    const int lane = threadIdx.x % 32, wave = threadIdx.x / 32;
    int sum = x;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
        const int other = __shfl_up_sync(~0u, sum, far);
        sum += lane >= far ? other : 0;
    }
    if (lane == 31)
        room[wave] = sum;
    __syncthreads();
    int before = 0, total = 0;
#pragma unroll
    for (int i = 0; i < EXPERT_LIST_THREADS / 32; i++) {
        before += i < wave ? room[i] : 0;
        total += room[i];
    }
    __syncthreads();
    all = total;
    return before + sum - x;
}

/* Calls use(pair, its bucket: an expert, or `experts` if it is not here) for pairs from .. to - 1, a thread several at a time. */
template <class F>
static __device__ __forceinline__ void each_pair(const gpu_call &c, const expert_call &e, int from, int to, F use) {
    enum { AT_ONCE = 8 };
    const bool dense = c.v[c.n_in].stride == 4 * (uint64_t)e.each; /* divisions take long */
    for (int base = from + (int)threadIdx.x; base < to; base += AT_ONCE * EXPERT_LIST_THREADS) {
        int bucket[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int pair = base + i * EXPERT_LIST_THREADS;
            bucket[i] = pair >= to ? 0 : dense ? e.chosen(c, 0, pair) : e.chosen(c, pair / e.each, pair % e.each);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (base + i * EXPERT_LIST_THREADS < to)
                use(base + i * EXPERT_LIST_THREADS, bucket[i] < 0 ? e.experts : bucket[i]);
    }
}

#if HOPPER
/* What the groups of the cluster have at this place of shared memory: the sum of those before this one; all: of all. */
static __device__ __forceinline__ int cluster_before(const int *at, uint32_t rank, uint32_t parts, int &all) {
    int before = 0;
    all = 0;
    for (uint32_t r = 0; r < parts; r++) {
        int n;
        asm volatile("{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %1, %2;\n"
                     " ld.shared::cluster.u32 %0, [there];\n}"
                     : "=r"(n)
                     : "r"(shared_address(at)), "r"(r)
                     : "memory");
        before += r < rank ? n : 0;
        all += n;
    }
    return before;
}
#else
static __device__ __forceinline__ uint32_t cluster_size() {
    return 1;
}

static __device__ __forceinline__ void cluster_sync() {
    __syncthreads();
}

static __device__ __forceinline__ int cluster_before(const int *at, uint32_t, uint32_t, int &all) {
    all = *at;
    return 0;
}
#endif

/* The groups of the first cluster sort, each a part of the pairs: shared memory's atomics and scattered stores take as long for
 * one group as a prompt's conversion. */
template <int MOST>
static __device__ __forceinline__ void expert_sort(const gpu_call &c, const expert_call &e, const expert_scratch &s,
                                                   int now, uint32_t rank, uint32_t parts) {
    __shared__ int counts[EXPERT_MOST + 1], room[EXPERT_LIST_THREADS / 32];
    const int expert = threadIdx.x, pairs = now * e.each;
    const int from = (int)((int64_t)pairs * rank / parts), to = (int)((int64_t)pairs * (rank + 1) / parts);
    int *list = (int *)(c.scratch + s.list), here, tiles, n = 0, before = 0, none = 0, none_before = 0;
    int4 *tile = (int4 *)(c.scratch + s.tiles);
    counts[expert] = 0;
    if (expert == 0)
        counts[e.experts] = 0;
    __syncthreads();
    each_pair(c, e, from, to, [&](int, int bucket) { atomicAdd(&counts[bucket], 1); });
    cluster_sync();
    if (expert < e.experts)
        before = cluster_before(counts + expert, rank, parts, n);
    if (expert == 0)
        none_before = cluster_before(counts + e.experts, rank, parts, none);
    const int first = sum_before(n, room, here), at = sum_before((n + MOST - 1) / MOST, room, tiles);
    for (int i = 0; i * MOST < n && rank == 0; i++)
        tile[at + i] = make_int4(expert, first + i * MOST, min(MOST, n - i * MOST), n);
    if (expert == 0 && rank == 0)
        *(int4 *)c.scratch = make_int4(tiles, none, here, 0);
    cluster_sync(); /* all have read the counts */
    if (expert < e.experts)
        counts[expert] = first + before;
    if (expert == 0)
        counts[e.experts] = here + none_before;
    __syncthreads();
    each_pair(c, e, from, to, [&](int pair, int bucket) { list[atomicAdd(&counts[bucket], 1)] = pair; });
}

/* The tiles of head_linear, whose pairs (token, head) need no sorting: by the first group. */
template <int MOST>
static __device__ __forceinline__ void head_tiles(const gpu_call &c, const expert_call &e, const expert_scratch &s,
                                                  int now) {
    const int each = (now + MOST - 1) / MOST;
    for (int i = threadIdx.x; i < e.experts * each; i += EXPERT_LIST_THREADS) {
        const int head = i / each, first = i % each * MOST;
        ((int4 *)(c.scratch + s.tiles))[i] = make_int4(head, head * now + first, min(MOST, now - first), now);
    }
    if (threadIdx.x == 0)
        *(int4 *)c.scratch = make_int4(e.experts * each, 0, now * e.experts, 0);
}

/* Rows as bf16, in the order of columns_values.cuh; a thread converts a piece. */
struct rows_bf16 {
    enum { PIECE = 16 };
    __device__ static __forceinline__ expert_scratch scratch_of(const gpu_call *c, int most) {
        return expert_scratch_of(c, most);
    }
    /* i: the piece, counted over all rows. */
    __device__ static __forceinline__ void store(const gpu_call &c, const expert_scratch &s, int64_t i,
                                                 const float (&x)[PIECE]) {
        uint4 *to = (uint4 *)(c.scratch + s.rows) + 2 * i;
        to[0] = columns_piece(x, 0), to[1] = columns_piece(x, 1);
    }
};

template <class ROWS, int MOST> static __device__ __forceinline__ void expert_list(const gpu_call &c) {
    launch_next();
    wait_before();
    const expert_call e(c);
    const expert_scratch s = ROWS::scratch_of(&c, MOST);
    const int now = rows_now(c, c.v[0]), pieces = e.chunks * (CHUNK / ROWS::PIECE);
    const uint32_t parts = cluster_size();
    if (blockIdx.x < parts) {
        if (!e.by_head)
            expert_sort<MOST>(c, e, s, now, blockIdx.x, parts);
        else if (blockIdx.x == 0)
            head_tiles<MOST>(c, e, s, now);
        return;
    }
    const int thread = (int)(blockIdx.x - parts) * EXPERT_LIST_THREADS + threadIdx.x,
              threads = (int)(gridDim.x - parts) * EXPERT_LIST_THREADS;
    if (e.by_head)
        for (int i = thread; i < now * e.each; i += threads)
            ((int *)(c.scratch + s.list))[i] = i % now * e.each + i / now;
    const int each = (int64_t)c.v[1].shape[1] * c.v[1].shape[2] == e.width ? 1 : e.each;
    const int64_t all = (int64_t)now * each * pieces;
    for (int64_t i = thread; i < all; i += threads) {
        const int row = (int)(i / pieces), k = (int)(i % pieces) * ROWS::PIECE;
        const float *from = e.input(c, row / each, row % each) + k;
        float x[ROWS::PIECE];
#pragma unroll
        for (int q = 0; q < ROWS::PIECE / 4; q++) {
            const float4 v = k + 4 * q < e.width ? *(const float4 *)(from + 4 * q) : make_float4(0, 0, 0, 0);
            x[4 * q] = v.x, x[4 * q + 1] = v.y, x[4 * q + 2] = v.z, x[4 * q + 3] = v.w;
        }
        ROWS::store(c, s, i, x);
    }
}

#define EXPERT_LIST(N)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_LIST_THREADS, 1)                                               \
        expert_list_##N(const __grid_constant__ gpu_call c) {                                                          \
        expert_list<rows_bf16, N>(c);                                                                                  \
    }

#endif
