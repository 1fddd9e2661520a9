/* attention_split.cu: attention of few tokens over paged caches, the past cut into splits (after Dao et al.,
 * "Flash-Decoding for long-context inference", 2023).
 *
 * A group computes one split of one token and one KV head, with the query heads that share it, up to 8 or 16; its four warps take
 * 16 keys at a time, in turn. Products are transposed: scores are keys by heads, sums are value columns by heads (m16n8k16), so 8 heads cost
 * as much as one. Keys and values go from memory to registers in pieces of 16 bytes, without shared memory: the order of D, and
 * within a piece, is permuted so that a lane's pieces are its operands. In a call of few tokens, a run of tokens of one slot at
 * consecutive positions has the same splits, and one group takes several of them, up to 16 heads, at once. Splits depend on what
 * the run sees and the launch's maximum number of splits, and results are merged in order: of few tokens by the group that
 * ends last of a token's, of many by a second kernel, attention_join. A token with one split needs neither. In calls with many tokens this
 * kernel computes only the tiles that attention_wide skips.
 *
 * ANY: the kernel takes heads of up to D numbers, whose rows are filled up with zeros, sight both ways, soft caps and ALiBi; the
 * others take heads of D numbers that see what is behind them, with plain scores. Where D is more than 256 (on other devices than Hopper, 128), warps share 16 keys and have as many of the columns each.
 */
#include "attention_few.cuh"

/* Splits of what a token sees: first position, positions per split, number of splits. */
struct cut {
    int start, chunk, used;
};

static __device__ __forceinline__ cut cut_of(const sight &s, int splits) {
    cut t;
    t.start = s.from / STRIDE * STRIDE;
    const int all = s.to - t.start;
    t.chunk = ((all + splits - 1) / splits + STRIDE - 1) / STRIDE * STRIDE;
    if (splits <= FEW_SPLITS && t.chunk < LEAST_SPLIT)
        t.chunk = LEAST_SPLIT;
    t.used = (all + t.chunk - 1) / t.chunk;
    return t;
}

/* Whether this group's split lies beyond all that a token or its run sees, by its position alone: most groups of a short past end here. */
static __device__ __forceinline__ bool beyond(const gpu_call &c, int token, bool causal) {
    return causal && blockIdx.z > 0 && gridDim.z <= FEW_SPLITS &&
           (int)blockIdx.z * LEAST_SPLIT > i32_at(&c.v[5], token) + FEW;
}

/* The cut of a token's run, of which the token uses the splits up to what it sees itself. */
static __device__ __forceinline__ cut cut_in_run(const gpu_call &c, const caches &x, const token_run &r, int slot,
                                                 const sight &own, int splits) {
    const int pos = i32_at(&c.v[5], r.first);
    if (r.count == 1)
        return cut_of(own, splits);
    cut t = cut_of({token_sight(c, x, slot, pos).from, token_sight(c, x, slot, pos + r.count - 1).to}, splits);
    t.used = (own.to - t.start + t.chunk - 1) / t.chunk;
    return t;
}

/* How a kernel's warps share its work. */
template <int FORMAT, int D, int N, bool ANY> struct split_shape {
    static constexpr int PARTS = split_parts(D, HOPPER), COLUMNS = D / PARTS;
    static constexpr int RESULTS = WARPS / PARTS /* of a group */, STEP = STRIDE / PARTS /* keys of a group's step */;
    typedef lane_ring<FORMAT, COLUMNS, (ANY || PARTS > 1)> ring;
    typedef scoring<N, ANY, PARTS> scores;
    typedef warp_state<COLUMNS, N> state;

    static __device__ __forceinline__ int width(const gpu_call &c) {
        return ANY ? c.v[1].shape[2] : D;
    }
};

/* Of a run: two groups of eight columns, in which the tokens' heads stand one behind the other. */
template <int FORMAT, int D> struct run_shape : split_shape<FORMAT, D, 2, false> {
    typedef run_scoring<2> scores;
};

/* A group's query heads: `heads` of them from `first` on, which share a KV head. */
struct split_heads {
    int kv, first, heads;
};

static __device__ __forceinline__ split_heads heads_of(const gpu_call &c, int most) {
    const int kv = c.v[2].shape[1], group = c.v[1].shape[1] / kv, part = blockIdx.x / kv, head = blockIdx.x % kv;
    return {head, head * group + part * most, min(most, group - part * most)};
}

/* Runs a warp's keys of the split. The first loads overlap the preparation of the query. A block's index is loaded one step
 * ahead. */
template <class S, int FORMAT, int D, int N>
static __device__ __forceinline__ void walk(const gpu_call &c, const caches &x, const typename S::ring &ring,
                                            typename S::state &w, typename S::scores &scores, const token_run &r,
                                            const split_heads &h, int slot, int begin, int end, int from, int *bad) {
    typedef typename S::ring R;
    const int32_t *row = x.table + slot * x.table_stride;
    int key = begin + threadIdx.x / 32 / S::PARTS * SPAN, coming = key, stage = 0;
    int32_t number[R::STAGES];
#pragma unroll
    for (int i = 0; i < R::STAGES; i++)
        number[i] = key + i * S::STEP < end ? row[(key + i * S::STEP) >> x.shift] : 0;
#pragma unroll
    for (int i = 0; i < R::STAGES - 1; i++, coming += S::STEP) {
        if (coming < end)
            ring.fetch(x, i, good_block(x, number[i], bad), coming, from, end);
        copies_close();
    }
    const int width = S::width(c);
    const float *query = (const float *)(c.v[1].data + (uint64_t)r.first * c.v[1].stride) + h.first * width;
    load_query<FORMAT, S::COLUMNS, N>(query, r.count * h.heads, x.scale, w, width,
                                      S::PARTS > 1 ? (int)threadIdx.x / 32 % S::PARTS * S::COLUMNS : 0, h.heads,
                                      (int64_t)c.v[1].stride / 4);
    scores.begin(w);
    int32_t next = number[R::STAGES - 1];
    for (int to = R::STAGES - 1; key < end; key += S::STEP, coming += S::STEP) {
        if (coming < end)
            ring.fetch(x, to, good_block(x, next, bad), coming, from, end);
        copies_close();
        if (coming + S::STEP < end)
            next = row[(coming + S::STEP) >> x.shift];
        copies_wait<R::STAGES - 1>();
        uint32_t b[N][2];
#pragma unroll
        for (int n = 0; n < N; n++)
            weigh<FORMAT, S::COLUMNS, N>(w, ring, scores, stage, n, key, from, end, b[n]);
        add_values<FORMAT, S::COLUMNS, N>(w, ring, stage, b);
        to = stage;
        stage = stage + 1 == R::STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
}

static __device__ __forceinline__ float *left_result(const gpu_call &c, int d, int token, int head, int splits,
                                                     int split) {
    const int64_t heads = c.v[1].shape[1];
    const int64_t row = (token * heads + head) * splits + split;
    return (float *)c.scratch + (tiles_of(&c) + 3) / 4 * 4 + row * (d + RESULT_HEAD);
}

static __device__ __forceinline__ void write_output(const gpu_call &c, int d, int token, int head, int number,
                                                    float4 sum, float most, float total) {
    write_four(c, token, head * d + number, times(sum, share_of(most, total, sink_of(c, head))));
}

/* Merges the warps' results of a split: of a token that has others too, to be joined with these; else to the output. width: the head's numbers,
 * of D columns; used(i): splits of the run's token i, 0 where it does not see this one. */
template <int RESULTS, int D, class USED>
static __device__ __forceinline__ void leave_results(const gpu_call &c, const shared_results<D> &r,
                                                     const token_run &run, const split_heads &h, int width, USED used) {
    __syncthreads();
    merge_parts(
        r.heads, width, r.of(1, 0) - r.of(0, 0), [](int) { return RESULTS; },
        [&](int column) { return (const float *)r.of(0, column); },
        [&](int column, int number, float4 sum, float most, float total) {
            const int token = run.first + column / h.heads, head = h.first + column % h.heads,
                      all = used(column / h.heads);
            if (all > 1)
                leave_four(left_result(c, width, token, head, gridDim.z, blockIdx.z), number, sum, most, total);
            else if (all == 1)
                write_output(c, width, token, head, number, sum, most, total);
        });
}

static __device__ __forceinline__ bool joins_last(const gpu_call &c) {
    return gridDim.z > 1 && last_joins(c.v[1].shape[0], gridDim.x);
}

/* Of up to WALKERS tokens: the group that ends last of all that have splits of a token merges them, for each token of the run. used: splits of the
 * run's token whose number this thread has, 0 where this group has none. One function for all kernels, which compile sooner so. */
static __device__ __noinline__ void join_last(const gpu_call &c, const token_run run, const split_heads h, int width,
                                              int used) {
    __shared__ int last[FEW];
    __threadfence();
    __syncthreads();
    if ((int)threadIdx.x < run.count) {
        uint32_t *count = (uint32_t *)c.counters + (run.first + threadIdx.x) * gridDim.x + blockIdx.x;
        last[threadIdx.x] = used > 1 && atomicAdd(count, 1) == (uint32_t)used - 1 ? used : 0;
        if (last[threadIdx.x])
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    merge_parts(
        run.count * h.heads, width, width + RESULT_HEAD, [&](int column) { return last[column / h.heads]; },
        [&](int column) {
            const int token = run.first + column / h.heads;
            return (const float *)left_result(c, width, token, h.first + column % h.heads, gridDim.z, 0);
        },
        [&](int column, int number, float4 sum, float most, float total) {
            write_output(c, width, run.first + column / h.heads, h.first + column % h.heads, number, sum, most, total);
        });
}

/* A split of a run of tokens. */
template <int FORMAT, int D>
static __device__ __forceinline__ void split_run(const gpu_call &c, const token_run &run, const split_heads &h) {
    typedef run_shape<FORMAT, D> S;
    extern __shared__ __align__(16) uint8_t memory[];
    const int splits = gridDim.z, warp = threadIdx.x / 32, slot = i32_at(&c.v[4], run.first),
              pos = i32_at(&c.v[5], run.first);
    caches x = caches_of(c, h.kv);
    x.causal = 1;
    if (!place_good(x, slot, pos) || !place_good(x, slot, pos + run.count - 1)) {
        fault(&c);
        return;
    }
    const sight last = token_sight(c, x, slot, pos + run.count - 1), first = token_sight(c, x, slot, pos);
    const cut t = cut_in_run(c, x, run, slot, last, splits);
    const int begin = t.start + (int)blockIdx.z * t.chunk, end = min(begin + t.chunk, last.to);
    if (begin >= end)
        return;
    const shared_results<D> r = {(float *)memory, run.count * h.heads};
    const typename S::ring ring = {shared_address(memory) + warp * S::ring::WARP + threadIdx.x % 32 * 16, D, 0, D / 8};
    typename S::state w;
    typename S::scores scores;
    scores.shape = shaping{};
    scores.turn = 0, scores.room = nullptr;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int column = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, token = column / h.heads;
        const sight own = token_sight(c, x, slot, pos + token);
        scores.from[i / 2][i % 2] = own.from;
        scores.to[i / 2][i % 2] = token < run.count ? min(own.to, end) : 0;
    }
    int bad = 0;
    walk<S, FORMAT, D, 2>(c, x, ring, w, scores, run, h, slot, begin, end, first.from, &bad);
    __syncthreads();
    leave(w, r);
    if (bad)
        fault(&c);
    const auto used = [&](int i) {
        const sight own = token_sight(c, x, slot, pos + i);
        return begin < own.to ? cut_in_run(c, x, run, slot, own, splits).used : 0;
    };
    leave_results<S::RESULTS>(c, r, run, h, D, used);
    if (joins_last(c))
        join_last(c, run, h, D, (int)threadIdx.x < run.count ? used((int)threadIdx.x) : 0);
}

template <int FORMAT, int D, int N, bool ANY>
static __device__ __forceinline__ void split_token(const gpu_call &c, int token) {
    typedef split_shape<FORMAT, D, N, ANY> S;
    extern __shared__ __align__(16) uint8_t memory[];
    if (beyond(c, token, !ANY || ((const arg_attention *)c.arg)->causal))
        return;
    const split_heads h = heads_of(c, 8 * N);
    const token_run run = run_of(c, caches_of(c, 0), token);
    if constexpr (!ANY && N == 1 && D <= 128) {
        if (token != run.first) /* the first token's group takes it */
            return;
        if (run.count > 1) {
            split_run<FORMAT, D>(c, run, h);
            return;
        }
    }
    const int splits = gridDim.z, warp = threadIdx.x / 32, part = warp % S::PARTS;
    const int slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    caches x = caches_of(c, h.kv);
    x.causal = x.causal || !ANY;
    const sight seen = token_sight(c, x, slot, pos);
    if (!place_good(x, slot, pos) || !place_good(x, slot, seen.to - 1)) {
        fault(&c);
        return;
    }
    const cut t = cut_in_run(c, x, run, slot, seen, splits);
    const int begin = t.start + (int)blockIdx.z * t.chunk, end = min(begin + t.chunk, seen.to);
    if (begin >= end)
        return;
    const shared_results<D> r = {(float *)memory, h.heads};
    const typename S::ring ring = {shared_address(memory) + warp * S::ring::WARP + threadIdx.x % 32 * 16, S::width(c),
                                   part * (S::COLUMNS / 8), S::width(c) / 8 - part * (S::COLUMNS / 8)};
    typename S::state w;
    typename S::scores scores = {ANY ? shaping_of(c) : shaping{}};
    scores.at = pos, scores.turn = 0, scores.room = (float *)(memory + WARPS * S::ring::WARP);
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const int head = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        scores.slope[i / 2][i % 2] = ANY && head < h.heads ? slope_of(c, h.first + head) : 0;
    }
    int bad = 0;
    walk<S, FORMAT, D, N>(c, x, ring, w, scores, {token, 1}, h, slot, begin, end, seen.from, &bad);
    __syncthreads();
    leave(w, r);
    if (bad)
        fault(&c);
    leave_results<S::RESULTS>(c, r, {token, 1}, h, S::width(c), [&](int) { return t.used; });
    if (joins_last(c))
        join_last(c, {token, 1}, h, S::width(c), t.used);
}

static __device__ __forceinline__ void join_token(const gpu_call &c, int token) {
    const caches x = caches_of(c, 0);
    const int head = blockIdx.x, splits = most_splits(&c), slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    const int width = c.v[1].shape[2];
    const sight seen = token_sight(c, x, slot, pos);
    if (!place_good(x, slot, pos) || !place_good(x, slot, seen.to - 1))
        return;
    const cut t = cut_in_run(c, x, run_of(c, x, token), slot, seen, splits);
    if (t.used < 2)
        return;
    merge_parts(
        1, width, width + RESULT_HEAD, [&](int) { return t.used; },
        [&](int) { return (const float *)left_result(c, width, token, head, splits, 0); },
        [&](int, int number, float4 sum, float most, float total) {
            write_output(c, width, token, head, number, sum, most, total);
        });
}

#define SPLIT(name, FORMAT, D, N, ANY, GROUPS)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, GROUPS) name(const __grid_constant__ gpu_call c) {        \
        each_token(c, blockIdx.y, gridDim.y, [&](int t) { split_token<FORMAT, D, N, ANY>(c, t); });                    \
    }
/* Grid: KV heads times parts of their query heads, by tokens or by WALKERS where there are more than FEW, by most_splits(). Splits that a short
 * past does not have come last, so they take no other's place. */
#define SPLITS(format, FORMAT)                                                                                         \
    SPLIT(attention_split_64_8_##format, FORMAT, 64, 1, false, 3)                                                      \
    SPLIT(attention_split_64_16_##format, FORMAT, 64, 2, false, 3)                                                     \
    SPLIT(attention_split_128_8_##format, FORMAT, 128, 1, false, 2)                                                    \
    SPLIT(attention_split_128_16_##format, FORMAT, 128, 2, false, 2)                                                   \
    SPLIT(attention_split_256_8_##format, FORMAT, 256, 1, false, 1)                                                    \
    SPLIT(attention_split_any_128_##format, FORMAT, 128, 1, true, 2)                                                   \
    SPLIT(attention_split_any_256_##format, FORMAT, 256, 1, true, 1)                                                   \
    SPLIT(attention_split_any_512_##format, FORMAT, 512, 1, true, 1)
#ifndef SPLIT_KERNELS /* a bench names fewer, for it compiles sooner */
SPLITS(f16, CACHE_F16)
SPLITS(bf16, CACHE_BF16)
SPLITS(fp8, CACHE_FP8)
SPLITS(q8_0, CACHE_Q8_0)
SPLITS(q4_0, CACHE_Q4_0)
#endif

/* Grid: query heads by tokens or WALKERS. */
#define JOIN(format)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                           \
        attention_join_##format(const __grid_constant__ gpu_call c) {                                                  \
        if (most_splits(&c) > 1)                                                                                       \
            each_token(c, blockIdx.y, gridDim.y, [&](int t) { join_token(c, t); });                                    \
    }
JOIN(f16)
JOIN(bf16)
JOIN(fp8)
JOIN(q8_0)
JOIN(q4_0)
