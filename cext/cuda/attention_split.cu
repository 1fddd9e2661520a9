/* attention_split.cu: causal attention of few tokens over paged caches, the past cut into splits (after Dao et al.,
 * "Flash-Decoding for long-context inference", 2023).
 *
 * A group computes one split of one token and one KV head, with all query heads that share it; its four warps take 16 keys at a
 * time, in turn. Products are transposed: scores are keys by heads, sums are value columns by heads (m16n8k16), so 8 heads cost
 * as much as one. Keys and values go from memory to registers in pieces of 16 bytes, without shared memory: the order of D, and
 * within a piece, is permuted so that a lane's pieces are its operands. Splits depend on a token's position and the launch's
 * maximum number of splits alone, and results are merged in order, so a token's bits don't depend on its neighbours. A second
 * kernel, attention_join, merges splits; a token with one split skips it. In calls with many tokens this kernel computes only
 * the tiles that attention_wide skips.
 */
#include "attention_few.cuh"

/* Splits of the past of a token at `pos`: first position, positions per split, number of splits. */
struct cut {
    int start, chunk, used;
};

static __device__ __forceinline__ cut cut_of(const caches &x, int pos, int splits) {
    cut t;
    t.start = first_seen(x, pos) / STRIDE * STRIDE;
    const int all = pos + 1 - t.start;
    t.chunk = ((all + splits - 1) / splits + STRIDE - 1) / STRIDE * STRIDE;
    if (splits <= FEW_SPLITS && t.chunk < LEAST_SPLIT)
        t.chunk = LEAST_SPLIT;
    t.used = (all + t.chunk - 1) / t.chunk;
    return t;
}

/* Runs a warp's keys of the split. The first loads overlap the preparation of the query. A block's index is loaded one step
 * ahead. */
template <int FORMAT, int D, int N>
static __device__ __forceinline__ void walk(const gpu_call &c, const caches &x, const lane_ring<FORMAT, D> &ring,
                                            warp_state<D, N> &w, int token, int group, int slot, int begin, int end,
                                            int from, int *bad) {
    typedef lane_ring<FORMAT, D> R;
    const int32_t *row = x.table + slot * x.table_stride;
    int key = begin + threadIdx.x / 32 * SPAN, coming = key, stage = 0;
    int32_t number[R::STAGES];
#pragma unroll
    for (int i = 0; i < R::STAGES; i++)
        number[i] = key + i * STRIDE < end ? row[(key + i * STRIDE) >> x.shift] : 0;
#pragma unroll
    for (int i = 0; i < R::STAGES - 1; i++, coming += STRIDE) {
        if (coming < end)
            ring.fetch(x, i, good_block(x, number[i], bad), coming, from, end);
        copies_close();
    }
    const float *query = (const float *)(c.v[1].data + (uint64_t)token * c.v[1].stride) + x.head * group * D;
    load_query<FORMAT, D, N>(query, group, x.scale, w);
    int32_t next = number[R::STAGES - 1];
    for (int to = R::STAGES - 1; key < end; key += STRIDE, coming += STRIDE) {
        if (coming < end)
            ring.fetch(x, to, good_block(x, next, bad), coming, from, end);
        copies_close();
        if (coming + STRIDE < end)
            next = row[(coming + STRIDE) >> x.shift];
        copies_wait<R::STAGES - 1>();
        uint32_t b[N][2];
#pragma unroll
        for (int n = 0; n < N; n++)
            weigh<FORMAT, D, N>(w, ring, stage, n, key, from, end, b[n]);
        add_values<FORMAT, D, N>(w, ring, stage, b);
        to = stage;
        stage = stage + 1 == R::STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
}

static __device__ __forceinline__ float *left_result(const gpu_call &c, int d, int token, int head, int splits,
                                                     int split) {
    const int64_t heads = c.v[1].shape[1];
    return (float *)c.scratch + tiles_of(&c) + ((token * heads + head) * splits + split) * (d + 2);
}

static __device__ __forceinline__ float *output_row(const gpu_call &c, int d, int token, int head) {
    return (float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + head * d;
}

/* Merges the warps' results to the group's, which overwrites warp 0's; each thread merges elements of its own. */
template <int D> static __device__ __forceinline__ void merge_warps(const shared_results<D> &r) {
    __syncthreads();
    for (int i = threadIdx.x; i < r.heads * D; i += 32 * WARPS) {
        const int head = i / D, number = i % D;
        float most, total;
        const float sum = merged(WARPS, number, [&](int w) { return (const float *)r.of(w, head); }, &most, &total);
        r.of(0, head)[2 + number] = sum;
        if (number == 0)
            r.at[WARPS * r.heads * (D + 2) + 2 * head] = most, r.at[WARPS * r.heads * (D + 2) + 2 * head + 1] = total;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * r.heads; i += 32 * WARPS)
        r.of(0, i / 2)[i % 2] = r.at[WARPS * r.heads * (D + 2) + i];
    __syncthreads();
}

template <int D>
static __device__ __forceinline__ void leave_result(const gpu_call &c, const shared_results<D> &r, int token,
                                                    int kv_head, int splits, int used) {
    for (int i = threadIdx.x; i < r.heads * (D + 2); i += 32 * WARPS) {
        const int head = kv_head * r.heads + i / (D + 2), number = i % (D + 2);
        const float *mine = r.of(0, i / (D + 2));
        if (used > 1)
            left_result(c, D, token, head, splits, blockIdx.x)[number] = mine[number];
        else if (number >= 2)
            output_row(c, D, token, head)[number - 2] = mine[1] == 0 ? 0 : mine[number] / mine[1];
    }
}

template <int FORMAT, int D, int N> static __device__ __forceinline__ void split_token(const gpu_call &c, int token) {
    extern __shared__ uint8_t memory[];
    const int kv_head = blockIdx.y, splits = gridDim.x;
    const int slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    const caches x = caches_of(c, kv_head);
    if (!place_good(x, slot, pos)) {
        fault(&c);
        return;
    }
    const cut t = cut_of(x, pos, splits);
    const int begin = t.start + (int)blockIdx.x * t.chunk, end = begin + t.chunk < pos + 1 ? begin + t.chunk : pos + 1;
    if (begin >= end)
        return;
    const shared_results<D> r = {(float *)memory, c.v[1].shape[1] / c.v[2].shape[1]};
    const lane_ring<FORMAT, D> ring = {shared_address(memory) + threadIdx.x / 32 * lane_ring<FORMAT, D>::WARP +
                                       threadIdx.x % 32 * 16};
    warp_state<D, N> w;
    int bad = 0;
    walk<FORMAT, D, N>(c, x, ring, w, token, r.heads, slot, begin, end, first_seen(x, pos), &bad);
    __syncthreads();
    leave<D, N>(w, r);
    merge_warps<D>(r);
    if (bad)
        fault(&c);
    leave_result<D>(c, r, token, kv_head, splits, t.used);
}

template <int D> static __device__ __forceinline__ void join_token(const gpu_call &c, int token) {
    const caches x = caches_of(c, 0);
    const int head = blockIdx.x, splits = most_splits(&c), slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    if (!place_good(x, slot, pos))
        return;
    const cut t = cut_of(x, pos, splits);
    float most, total;
    if (t.used < 2)
        return;
    const float sum = merged(
        t.used, threadIdx.x, [&](int s) { return (const float *)left_result(c, D, token, head, splits, s); }, &most,
        &total);
    output_row(c, D, token, head)[threadIdx.x] = total == 0 ? 0 : sum / total;
}

/* Calls token() for this group's tokens: every walkers-th from `walker` on, of all tokens or of tiles with short runs. */
template <class F>
static __device__ __forceinline__ void each_token(const gpu_call &c, int walker, int walkers, F token) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int rows = rows_of(&c, &c.v[1]), all = c.v[1].shape[0] <= FEW, lane = threadIdx.x % 32;
    if (all) {
        if (walker < rows)
            token(walker);
        return;
    }
    for (int first = 0; first * TOKENS < rows; first += 32) {
        const int tile = first + lane, mine = tile * TOKENS < rows && ((const int32_t *)c.scratch)[tile];
        for (uint32_t left = __ballot_sync(0xFFFFFFFFu, mine); left; left &= left - 1) {
            const int begin = (first + __ffs(left) - 1) * TOKENS, end = begin + TOKENS < rows ? begin + TOKENS : rows;
            for (int t = begin + walker; t < end; t += walkers) {
                token(t);
                __syncthreads();
            }
        }
    }
}

#define SPLIT(name, FORMAT, D, N, GROUPS)                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, GROUPS) name(const __grid_constant__ gpu_call c) {        \
        each_token(c, blockIdx.z, gridDim.z, [&](int t) { split_token<FORMAT, D, N>(c, t); });                         \
    }
#define SPLITS(format, FORMAT)                                                                                         \
    SPLIT(attention_split_64_8_##format, FORMAT, 64, 1, 3)                                                             \
    SPLIT(attention_split_64_16_##format, FORMAT, 64, 2, 3)                                                            \
    SPLIT(attention_split_128_8_##format, FORMAT, 128, 1, 2)                                                           \
    SPLIT(attention_split_128_16_##format, FORMAT, 128, 2, 2)                                                          \
    SPLIT(attention_split_256_8_##format, FORMAT, 256, 1, 1)
/* Grids: most_splits() by KV heads by tokens, or by WALKERS where there are more than FEW; query heads by the same, and a thread
 * for each number. */
SPLITS(f16, CACHE_F16)
SPLITS(bf16, CACHE_BF16)
SPLITS(fp8, CACHE_FP8)
SPLITS(q8_0, CACHE_Q8_0)
SPLITS(q4_0, CACHE_Q4_0)

#define JOIN(D, format)                                                                                                \
    extern "C" __global__ void __launch_bounds__(D)                                                                    \
        attention_join_##D##_##format(const __grid_constant__ gpu_call c) {                                            \
        if (most_splits(&c) > 1)                                                                                       \
            each_token(c, blockIdx.y, gridDim.y, [&](int t) { join_token<D>(c, t); });                                 \
    }
#define JOINS(format) JOIN(64, format) JOIN(128, format) JOIN(256, format)
JOINS(f16)
JOINS(bf16)
JOINS(fp8)
JOINS(q8_0)
JOINS(q4_0)
