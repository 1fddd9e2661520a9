/* attention_wide.cu: causal attention of many tokens over paged caches, by wgmma (after FlashAttention, Dao et al., arXiv
 * 2205.14135, and FlashAttention-3, Shah et al., arXiv 2407.08608).
 *
 * A group computes a tile of 128 tokens of one query head, 64 in each of its two warpgroups, and loops over the keys that they
 * see, 64 at a time, while the next keys and values are loaded. A run is consecutive positions of one slot; a tile's runs are
 * processed one after the other with the other rows masked. Steps are at fixed positions and a masked key leaves a row
 * unchanged, so a row's bits depend on its own position alone. attention_split computes tiles of many short runs.
 */
#include <math_constants.h>

#include "attention.h"
#include "wgmma.h"

template <bool HALF>
static __device__ __forceinline__ void scores_of(float (&s)[32], uint64_t q, uint64_t k, int keep) {
    HALF ? product_f16_64(s, q, k, keep) : product_bf16_64(s, q, k, keep);
}

template <bool HALF>
static __device__ __forceinline__ void sums_of(float (&o)[32], const uint32_t (&p)[4], uint64_t v) {
    HALF ? product_f16_a_64(o, p, v) : product_bf16_a_64(o, p, v);
}

template <bool HALF>
static __device__ __forceinline__ void sums_of(float (&o)[64], const uint32_t (&p)[4], uint64_t v) {
    HALF ? product_f16_a_128(o, p, v) : product_bf16_a_128(o, p, v);
}

template <bool HALF>
static __device__ __forceinline__ void sums_of(float (&o)[128], const uint32_t (&p)[4], uint64_t v) {
    HALF ? product_f16_a_256(o, p, v) : product_bf16_a_256(o, p, v);
}

/* Address of piece i (8 elements) of row r in tiles of `rows` rows by 64 elements. */
static __device__ __forceinline__ uint32_t piece_at(int r, int i, int rows) {
    return (i / 8) * rows * 128 + r * 128 + (((i & 7) ^ (r & 7)) << 4);
}

template <int FORMAT, int D> struct wide_attention {
    typedef cache_row<FORMAT> row;
    static constexpr int Q_BYTES = TOKENS * D * 2, KV_BYTES = KEYS * D * 2, PIECES = D / 8;
    static constexpr int ROWS_EACH = KEYS * PIECES / 256; /* rows of keys per thread, a piece of each */
    caches x;
    uint32_t queries, ring;
    float *scales;       /* per row of the tile: scale of scores, times log2(e) */
    int *slots, *places; /* slot and position of the tile's tokens */
    uint32_t *starts;    /* bit mask of tokens that begin a run */
    int32_t *ids;        /* valid block indices of the slot; block b is at b % IDS */
    int tokens, bad;

    /* Loads the tile's queries as f16, and the scales of their scores. */
    __device__ __forceinline__ void load_queries(const gpu_view &q, int first, int head) {
        const int each = 32 / PIECES, lane = threadIdx.x % 32, i = lane % PIECES;
        for (int r = threadIdx.x / 32 * each + lane / PIECES; r < TOKENS; r += 8 * each) {
            float n[8] = {0}, most = 0, down, up;
            if (r < tokens) {
                const float4 *from =
                    (const float4 *)(q.data + (uint64_t)(first + r) * q.stride) + head * (D / 4) + 2 * i;
                const float4 a = from[0], b = from[1];
                n[0] = a.x, n[1] = a.y, n[2] = a.z, n[3] = a.w, n[4] = b.x, n[5] = b.y, n[6] = b.z, n[7] = b.w;
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                most = fmaxf(most, fabsf(n[j]));
#pragma unroll
            for (int j = PIECES / 2; j; j /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
            query_power(most, &down, &up);
            uint32_t h[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                h[j] = two_halves<row::HALF>(n[2 * j] * down, n[2 * j + 1] * down);
            const uint32_t to = queries + piece_at(r, i, TOKENS);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(h[0]), "r"(h[1]), "r"(h[2]),
                         "r"(h[3])
                         : "memory");
            if (i == 0)
                scales[r] = x.scale * CUDART_L2E_F * up;
        }
    }

    __device__ __forceinline__ void load_places(const gpu_call &c, int first) {
        const int t = threadIdx.x;
        if (t < TOKENS) {
            int slot = -1, pos = -1, begins = t < tokens;
            if (t < tokens) {
                const int32_t *s = (const int32_t *)c.v[4].data + first + t,
                              *p = (const int32_t *)c.v[5].data + first + t;
                slot = *s, pos = *p;
                begins = t == 0 || s[-1] != slot || p[-1] + 1 != pos;
            }
            slots[t] = slot, places[t] = pos;
            const uint32_t bits = __ballot_sync(0xFFFFFFFFu, begins);
            if (t % 32 == 0)
                starts[t / 32] = bits;
        }
    }

    /* 1: the tile's runs are short, so attention_split computes it. */
    __device__ __forceinline__ int short_runs(void) const {
        return (__popc(starts[0]) + __popc(starts[1]) + __popc(starts[2]) + __popc(starts[3])) * SHORT_RUN > tokens;
    }

    /* The first token after t that begins a run, or the number of tokens. */
    __device__ __forceinline__ int run_end(int t) const {
        for (t++; t < tokens; t = (t / 32 + 1) * 32) {
            const uint32_t bits = starts[t / 32] >> (t % 32);
            if (bits)
                return t + __ffs(bits) - 1;
        }
        return tokens;
    }

    /* Loads the block indices of positions [key, to), at most IDS. */
    __device__ __forceinline__ void load_ids(int slot, int key, int to) {
        const int first = key >> x.shift, last = (to - 1) >> x.shift, end = last < first + IDS ? last + 1 : first + IDS;
        for (int b = first + threadIdx.x; b < end; b += 256)
            ids[b & (IDS - 1)] = good_block(x, x.table[slot * x.table_stride + b], &bad);
    }

    /* Starts loading keys and values of positions key to key + 63; those outside of [from, to) become 0. */
    __device__ __forceinline__ void fetch(int key, int from, int to, int stage) {
        const int i = threadIdx.x % PIECES;
        const uint32_t k_at = ring + stage * 2 * KV_BYTES, v_at = k_at + KV_BYTES;
#pragma unroll
        for (int n = 0; n < ROWS_EACH; n++) {
            const int r = threadIdx.x / PIECES + n * (256 / PIECES), pos = key + r, seen = pos >= from && pos < to;
            const int block = seen ? ids[pos >> x.shift & (IDS - 1)] : 0;
            const uint32_t in = (x.head * x.block + (pos & (x.block - 1))) * row::bytes(D);
            const uint8_t *k = x.k + (uint64_t)block * x.k_stride + in, *v = x.v + (uint64_t)block * x.v_stride + in;
            const uint32_t at = piece_at(r, i, KEYS);
            if (row::PLAIN) {
                copy_16(k_at + at, k + 16 * i, seen);
                copy_16(v_at + at, v + 16 * i, seen);
            } else {
                const uint4 none = make_uint4(0, 0, 0, 0);
                const uint4 a = seen ? cache_eight<FORMAT>(k, i) : none, b = seen ? cache_eight<FORMAT>(v, i) : none;
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(k_at + at), "r"(a.x), "r"(a.y), "r"(a.z),
                             "r"(a.w)
                             : "memory");
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(v_at + at), "r"(b.x), "r"(b.y), "r"(b.z),
                             "r"(b.w)
                             : "memory");
            }
        }
        copies_close();
    }
};

/* A lane's rows in the tile: h is 0 or 1. */
static __device__ __forceinline__ int own_row(int h) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}

/* A lane's softmax state of its two rows, and its part of the weighted sums of values. */
template <int D> struct row_state {
    float o[D / 2], most[2], total[2];
    int to[2]; /* the rows see positions up to here; 0: they are of another run */
};

/* Online softmax: turns the scores of 64 keys from `key` on into weights, in place, and rescales the state to the new largest
 * scores. */
template <int D>
static __device__ __forceinline__ void softmax_step(row_state<D> &w, float (&s)[32], int key, int window,
                                                    const float *scales) {
    const int c = threadIdx.x % 4;
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int to = w.to[h], from = window > 0 && to > window ? to - window : 0;
        const float scale = scales[own_row(h)];
        float most = w.most[h], sum = 0;
        if (key < from || key + KEYS > to) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = key + 8 * j + 2 * c + e;
                    if (at < from || at >= to)
                        s[4 * j + 2 * h + e] = -CUDART_INF_F;
                }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        const float base = most == -CUDART_INF_F ? 0 : most * scale;
        keep[h] = exp2f(fmaf(w.most[h], scale, -base));
        w.most[h] = most;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float p = exp2f(fmaf(s[4 * j + 2 * h + e], scale, -base));
                s[4 * j + 2 * h + e] = p;
                sum += p;
            }
        w.total[h] = w.total[h] * keep[h] + sum;
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[4 * j + e] *= keep[e / 2];
}

template <int FORMAT, int D>
static __device__ __forceinline__ void attend(wide_attention<FORMAT, D> &a, row_state<D> &w, int key, int stage) {
    typedef wide_attention<FORMAT, D> A;
    const uint32_t k_at = a.ring + stage * 2 * A::KV_BYTES, v_at = k_at + A::KV_BYTES;
    const uint32_t q_at = a.queries + threadIdx.x / 128 * (64 * 128);
    float s[32];
    products_open();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        scores_of<A::row::HALF>(s, operand_at(q_at + i / 4 * (TOKENS * 128) + i % 4 * 32, 1024, 16),
                                operand_at(k_at + i / 4 * (KEYS * 128) + i % 4 * 32, 1024, 16), i);
    products_close();
    products_wait<0>();
    softmax_step<D>(w, s, key, a.x.window, a.scales);
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[i][e] = two_halves<A::row::HALF>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
    products_open();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        sums_of<A::row::HALF>(w.o, p[i], operand_at(v_at + i * 2048, 1024, KEYS * 128));
    products_close();
    products_wait<0>();
}

template <int FORMAT, int D>
static __device__ __forceinline__ void walk_run(wide_attention<FORMAT, D> &a, row_state<D> &w, int first, int end) {
    const int slot = a.slots[first], pos = a.places[first], last = pos + (end - first) - 1;
    int from = first_seen(a.x, pos), to = last + 1, stage = 0;
    if (!place_good(a.x, slot, pos) || !place_good(a.x, slot, last)) {
        a.bad = 1;
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = own_row(h);
        w.to[h] = row >= first && row < end ? pos + row - first + 1 : 0;
    }
    const int start = from / KEYS * KEYS, whole = a.x.block < KEYS ? IDS * a.x.block : IDS * KEYS;
    a.load_ids(slot, start, to);
    __syncthreads();
    a.fetch(start, from, to, 0);
    for (int key = start; key < to; key += KEYS, stage ^= 1) {
        copies_wait<0>();
        shared_to_async();
        __syncthreads();
        if (key + KEYS < to) {
            if (((key + KEYS - start) & (whole - 1)) == 0) {
                a.load_ids(slot, key + KEYS, to);
                __syncthreads();
            }
            a.fetch(key + KEYS, from, to, stage ^ 1);
        }
        attend<FORMAT, D>(a, w, key, stage);
    }
    __syncthreads();
}

template <int FORMAT, int D> static __device__ __forceinline__ void attention_tile(const gpu_call &c) {
    typedef wide_attention<FORMAT, D> A;
    extern __shared__ uint8_t memory[];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
    const int heads = c.v[1].shape[1], head = blockIdx.x % heads, all = rows_of(&c, &c.v[1]);
    const int tile = (all + TOKENS - 1) / TOKENS - 1 - (int)(blockIdx.x / heads), first = tile * TOKENS;
    const int lane = threadIdx.x % 32;
    if (tile < 0)
        return;
    A a;
    a.x = caches_of(c, head / (heads / c.v[2].shape[1]));
    a.queries = base;
    a.ring = base + A::Q_BYTES;
    a.scales = (float *)(memory + (base - shared_address(memory)) + A::Q_BYTES + 4 * A::KV_BYTES);
    a.slots = (int *)a.scales + TOKENS;
    a.places = a.slots + TOKENS;
    a.starts = (uint32_t *)a.places + TOKENS;
    a.ids = (int32_t *)a.starts + 16;
    a.tokens = all - first < TOKENS ? all - first : TOKENS;
    a.bad = 0;
    a.load_places(c, first);
    __syncthreads();
    if (a.short_runs()) {
        if (head == 0 && threadIdx.x == 0)
            ((int32_t *)c.scratch)[tile] = 1;
        return;
    }
    if (head == 0 && threadIdx.x == 0)
        ((int32_t *)c.scratch)[tile] = 0;
    a.load_queries(c.v[1], first, head);
    __syncthreads();
    row_state<D> w;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.most[h] = -CUDART_INF_F;
        w.total[h] = 0;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        w.o[i] = 0;
    for (int t = 0; t < a.tokens;) {
        const int end = a.run_end(t);
        walk_run<FORMAT, D>(a, w, t, end);
        t = end;
    }
    if (a.bad)
        fault(&c);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = own_row(h);
        float total = w.total[h];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        const float share = total == 0 ? 0 : 1 / total;
        float *y = (float *)(c.v[0].data + (uint64_t)(first + row) * c.v[0].stride) + head * D + lane % 4 * 2;
        if (row < a.tokens)
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *(float2 *)(y + 8 * j) = make_float2(w.o[4 * j + 2 * h] * share, w.o[4 * j + 2 * h + 1] * share);
    }
}

#define ATTENTION(name, FORMAT, D, GROUPS)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, GROUPS) name(const __grid_constant__ gpu_call c) {               \
        asm volatile("griddepcontrol.wait;" ::: "memory");                                                             \
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");                                                \
        attention_tile<FORMAT, D>(c);                                                                                  \
    }
#define ATTENTIONS(format, FORMAT)                                                                                     \
    ATTENTION(attention_wide_64_##format, FORMAT, 64, 2)                                                               \
    ATTENTION(attention_wide_128_##format, FORMAT, 128, 2)                                                             \
    ATTENTION(attention_wide_256_##format, FORMAT, 256, 1)
ATTENTIONS(f16, CACHE_F16)
ATTENTIONS(bf16, CACHE_BF16)
ATTENTIONS(fp8, CACHE_FP8)
ATTENTIONS(q8_0, CACHE_Q8_0)
ATTENTIONS(q4_0, CACHE_Q4_0)
