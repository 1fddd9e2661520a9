/* attention_fixed.cu: attention of any number of tokens whose bits depend on what a token sees alone, for PRODUCT_DETERMINISTIC.
 *
 * A token's keys are cut at multiples of FIXED_SPLIT positions. Each split has an online softmax of its own over steps of 64 keys,
 * and the splits' results are merged in order of their positions, by merge(). Three ways of computing lead to the same bits, for
 * all use the same products, which are independent in their rows, and the same functions for the rest:
 *
 * attention_fixed_wide_D has a tile of 128 tokens of a query head (attention_wide.cuh) and merges a split when it ends.
 * attention_fixed_D has one token, and a KV head's query heads as rows. Where a call has few tokens, groups take the splits of a
 * token, leave their results in scratch, and the last to end merges these; else one group takes all splits and merges as it goes.
 * In calls of many tokens it computes the tiles of short runs, which attention_fixed_wide_D marks.
 */
#include "attention_wide.cuh"

/* Results of the splits that were merged: largest score times its scale, sum of weights, weighted sums of values. */
template <int COLUMNS> struct row_sums {
    float o[COLUMNS / 2], most[2], total[2];
};

/* Adds a split to `most` and `total`; gives what the sums of values before, and those of the split, are to be multiplied by. */
static __device__ __forceinline__ float2 merge(float &most, float &total, float own_most, float own_total) {
    const float top = fmaxf(most, own_most), base = top == -INFINITY ? 0 : top;
    const float2 share = make_float2(power_of_two(most - base), power_of_two(own_most - base));
    most = top;
    total = fmaf(own_total, share.y, __fmul_rn(total, share.x));
    return share;
}

static __device__ __forceinline__ float merged_value(float sum, float own, float2 share) {
    return fmaf(own, share.y, __fmul_rn(sum, share.x));
}

/* A split's result of row h of this lane: x: the largest score times its scale; y: the sum of weights. */
template <class A, int COLUMNS>
static __device__ __forceinline__ float2 split_row(const A &a, const row_state<COLUMNS> &w, int h) {
    float total = w.total[h];
    total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
    return make_float2(w.most[h] == -INFINITY ? -INFINITY : __fmul_rn(w.most[h], a.scales[A::own_row(h)]), total);
}

/* The split has ended: its result goes to the sums, and the next begins. */
template <class A, int COLUMNS>
static __device__ __forceinline__ void merge_split(const A &a, row_state<COLUMNS> &w, row_sums<COLUMNS> &sums) {
    float2 share[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 own = split_row(a, w, h);
        share[h] = merge(sums.most[h], sums.total[h], own.x, own.y);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        sums.o[i] = merged_value(sums.o[i], w.o[i], share[i / 2 % 2]);
    clear(w);
}

template <int COLUMNS> static __device__ __forceinline__ void clear(row_sums<COLUMNS> &s) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        s.most[h] = -INFINITY, s.total[h] = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        s.o[i] = 0;
}

/* Divides the sums and writes them to place(row), where that is not NULL. */
template <class A, int COLUMNS, class PLACE, class SINK>
static __device__ __forceinline__ void write_sums(const row_sums<COLUMNS> &s, PLACE place, SINK sink) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *y = place(A::own_row(h));
        if (!y)
            continue;
        const float share = share_of(s.most[h], s.total[h], sink(A::own_row(h)));
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
            *(float2 *)(y + threadIdx.x % 4 * 2 + 8 * j) =
                make_float2(s.o[4 * j + 2 * h] * share, s.o[4 * j + 2 * h + 1] * share);
    }
}

template <int FORMAT, int D> static __device__ __forceinline__ void fixed_tile(const gpu_call &c) {
    typedef wide_attention<FORMAT, D, false, FIXED_SPLIT> A;
    row_sums<D> sums;
    clear(sums);
    attention_tile<A>(
        c, [&](const A &a, row_state<D> &w) { merge_split(a, w, sums); },
        [&](const A &a, const row_state<D> &, int first, int head) {
            const float sink = sink_of(c, head);
            write_sums<A>(
                sums,
                [&](int row) {
                    return row < a.tokens ? (float *)(c.v[0].data + (uint64_t)(first + row) * c.v[0].stride) + head * D
                                          : (float *)NULL;
                },
                [&](int) { return sink; });
        });
}

/* Where groups share a token's splits: the result of one. */
static __device__ __forceinline__ float *fixed_result(const gpu_call &c, int d, int token, int head, int split) {
    return (float *)c.scratch + tiles_of(&c) + (tiles_of(&c) & 1) +
           ((int64_t)(token * c.v[1].shape[1] + head) * fixed_splits(&c) + split) * (d + 2);
}

template <class A, int D>
static __device__ __forceinline__ void leave_split(const gpu_call &c, const A &a, const row_state<D> &w, int token,
                                                   int first, int heads, int split) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = A::own_row(h);
        const float2 own = split_row(a, w, h);
        if (row >= heads)
            continue;
        float *to = fixed_result(c, D, token, first + row, split);
        if (threadIdx.x % 4 == 0)
            *(float2 *)to = own;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(float2 *)(to + 2 + threadIdx.x % 4 * 2 + 8 * j) = make_float2(w.o[4 * j + 2 * h], w.o[4 * j + 2 * h + 1]);
    }
}

/* The last of a token's groups merges their results. */
template <int D>
static __device__ __forceinline__ void join_splits(const gpu_call &c, int token, int first, int heads, int used,
                                                   int groups) {
    __shared__ int last;
    uint32_t *count = (uint32_t *)c.counters + token * gridDim.y + blockIdx.y;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(count, 1) == (uint32_t)groups - 1;
        if (last)
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    for (int i = threadIdx.x; last && i < heads * D; i += 128) {
        const int head = first + i / D, number = i % D;
        float most = -INFINITY, total = 0, sum = 0;
#pragma unroll 4
        for (int s = 0; s < used; s++) {
            const float *part = fixed_result(c, D, token, head, s);
            const float2 own = __ldcg((const float2 *)part);
            const float value = __ldcg(part + 2 + number);
            sum = merged_value(sum, value, merge(most, total, own.x, own.y));
        }
        ((float *)(c.v[0].data + (uint64_t)token * c.v[0].stride))[head * D + number] =
            sum * share_of(most, total, sink_of(c, head));
    }
}

template <int FORMAT, int D> static __device__ __forceinline__ void fixed_token(const gpu_call &c, int token) {
    typedef wide_attention<FORMAT, D, false, FIXED_SPLIT, 128> A;
    extern __shared__ uint8_t memory[];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
    const int heads = c.v[1].shape[1] / c.v[2].shape[1], first = blockIdx.y * heads;
    const int slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    A a;
    a.x = caches_of(c, blockIdx.y);
    a.x.causal = 1;
    a.shape = shaping{};
    a.slope = 0;
    a.queries = base;
    a.ring = base + A::Q_BYTES;
    a.scales = (float *)(memory + (base - shared_address(memory)) + A::Q_BYTES + 4 * A::KV_BYTES);
    a.ids = (int32_t *)(a.scales + FIXED_ROWS);
    const sight seen = sight_of(a.x, pos, pos);
    if (!place_good(a.x, slot, pos)) {
        fault(&c);
        return;
    }
    const int begins = seen.from / FIXED_SPLIT, used = (seen.to - 1) / FIXED_SPLIT - begins + 1;
    const int groups = used > FIXED_SPLITS ? 1 : min((int)gridDim.x, used);
    if ((int)blockIdx.x >= groups)
        return;
    a.load_queries([&](int r) {
        return r < heads ? (const float *)(c.v[1].data + (uint64_t)token * c.v[1].stride) + (first + r) * D
                         : (const float *)NULL;
    });
    __syncthreads();
    row_state<D> w;
    clear(w);
    const auto see = [&](int from, int to) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool own = A::own_row(h) < heads;
            w.from[h] = own ? from : 0, w.to[h] = own ? to : 0, w.pos[h] = pos;
        }
    };
    if (groups > 1) {
        for (int s = blockIdx.x; s < used; s += groups) {
            const int from = max(seen.from, (begins + s) * FIXED_SPLIT),
                      to = min(seen.to, (begins + s + 1) * FIXED_SPLIT);
            see(from, to);
            walk_keys(c, a, w, slot, from, to, [&](const A &, row_state<D> &) {
                leave_split(c, a, w, token, first, heads, s);
                clear(w);
            });
        }
        join_splits<D>(c, token, first, heads, used, groups);
        return;
    }
    row_sums<D> sums;
    clear(sums);
    see(seen.from, seen.to);
    walk_keys(c, a, w, slot, seen.from, seen.to, [&](const A &, row_state<D> &) { merge_split(a, w, sums); });
    write_sums<A>(
        sums,
        [&](int row) {
            return row < heads ? (float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + (first + row) * D
                               : (float *)NULL;
        },
        [&](int row) { return sink_of(c, first + row); });
}

#define FIXED(format, FORMAT, D, GROUPS)                                                                               \
    extern "C" __global__ void __launch_bounds__(256, GROUPS)                                                          \
        attention_fixed_wide_##D##_##format(const __grid_constant__ gpu_call c) {                                      \
        asm volatile("griddepcontrol.wait;" ::: "memory");                                                             \
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");                                                \
        fixed_tile<FORMAT, D>(c);                                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                               \
        attention_fixed_##D##_##format(const __grid_constant__ gpu_call c) {                                           \
        each_token(c, blockIdx.z, gridDim.z, [&](int t) { fixed_token<FORMAT, D>(c, t); });                            \
    }
#define FIXED_OF(format, FORMAT) FIXED(format, FORMAT, 64, 2) FIXED(format, FORMAT, 128, 1)
FIXED_OF(f16, CACHE_F16)
FIXED_OF(bf16, CACHE_BF16)
FIXED_OF(fp8, CACHE_FP8)
FIXED_OF(q8_0, CACHE_Q8_0)
FIXED_OF(q4_0, CACHE_Q4_0)
