/* attention_wide.cu: attention of many tokens over paged caches, by wgmma (after FlashAttention, Dao et al., arXiv
 * 2205.14135, and FlashAttention-3, Shah et al., arXiv 2407.08608).
 *
 * A group computes a tile of 128 tokens of one query head, 64 in each of its two warpgroups, and loops over the keys that they
 * see, 64 at a time, while the next keys and values are loaded. A run is consecutive positions of one slot; a tile's runs are
 * processed one after the other with the other rows masked. Steps are at fixed positions and a masked key leaves a row
 * unchanged, so a row's bits depend on the positions that it sees alone. attention_split computes tiles of many short runs.
 *
 * ANY: the kernel takes heads of up to D numbers, whose rows are filled up with zeros, sight both ways, soft caps and ALiBi; the
 * others take heads of D numbers that see what is behind them, with plain scores. Where D is more than 256 a group takes 64 tokens and 32 keys at a time: each warpgroup
 * multiplies its half of the columns, of the queries with the keys and of the weights with the values, and they add their scores.
 */
#include "attention.h"
#include "wgmma.h"

template <bool HALF>
static __device__ __forceinline__ void scores_of(float (&s)[32], uint64_t q, uint64_t k, int keep) {
    HALF ? product_f16_64(s, q, k, keep) : product_bf16_64(s, q, k, keep);
}

template <bool HALF>
static __device__ __forceinline__ void scores_of(float (&s)[16], uint64_t q, uint64_t k, int keep) {
    HALF ? product_f16_32(s, q, k, keep) : product_bf16_32(s, q, k, keep);
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

/* Not inlined: beside its loop the compiler would find too few registers for that over the keys. */
static __device__ __noinline__ int last_of_slot(const gpu_call &c, int slot) {
    return last_fed(c, slot);
}

template <int FORMAT, int D, bool ANY> struct wide_attention {
    typedef cache_row<FORMAT> row;
    static constexpr bool BEHIND = !ANY; /* no token sees what follows it */
    static constexpr int PARTS = D > MOST_COLUMNS ? D / MOST_COLUMNS : 1, COLUMNS = D / PARTS;
    static constexpr int ROWS = TOKENS / PARTS, STEP = KEYS / PARTS; /* tokens of a group, keys of a step */
    static constexpr int Q_BYTES = ROWS * D * 2, KV_BYTES = STEP * D * 2, PIECES = D / 8;
    static constexpr int ROWS_EACH = STEP * PIECES / 256; /* rows of keys per thread, a piece of each */
    caches x;
    shaping shape;
    uint32_t queries, ring;
    float *sums;         /* of scores, where columns are cut */
    float *scales;       /* per row of the group: scale of scores, times log2(e) */
    int *slots, *places; /* slot and position of the tile's tokens */
    uint32_t *starts;    /* bit mask of tokens that begin a run */
    int32_t *ids;        /* valid block indices of the slot; block b is at b % IDS */
    int tokens, half;    /* tokens of the tile; of them the group computes [begin(), end()) */
    int numbers;         /* of a head */
    float slope;

    __device__ __forceinline__ int begin(void) const {
        return PARTS > 1 ? half * ROWS : 0;
    }
    __device__ __forceinline__ int end(void) const {
        return PARTS > 1 ? min(tokens, (half + 1) * ROWS) : tokens;
    }

    __device__ __forceinline__ int width(void) const {
        return ANY ? numbers : D;
    }

    /* The columns of this thread's warpgroup, and its row of the group; h is 0 or 1. */
    static __device__ __forceinline__ int part(void) {
        return PARTS > 1 ? threadIdx.x / 128 : 0;
    }
    static __device__ __forceinline__ int own_row(int h) {
        return threadIdx.x / 32 % (ROWS / 16) * 16 + threadIdx.x % 32 / 4 + 8 * h;
    }

    /* Loads the group's queries as f16, and the scales of their scores. */
    __device__ __forceinline__ void load_queries(const gpu_view &q, int first, int head) {
        constexpr int LANES = PIECES < 32 ? PIECES : 32, EACH = 32 / LANES, OWN = PIECES / LANES;
        const int lane = threadIdx.x % 32, i = lane % LANES;
        for (int r = threadIdx.x / 32 * EACH + lane / LANES; r < ROWS; r += 8 * EACH) {
            float n[OWN][8] = {{0}}, most = 0, down, up;
#pragma unroll
            for (int m = 0; m < OWN; m++) {
                const int at = 8 * (i + m * LANES);
                if (begin() + r < end() && (!ANY || at < width())) {
                    const float4 *from = (const float4 *)(q.data + (uint64_t)(first + begin() + r) * q.stride) +
                                         (head * width() + at) / 4;
                    const float4 a = from[0], b = from[1];
                    n[m][0] = a.x, n[m][1] = a.y, n[m][2] = a.z, n[m][3] = a.w;
                    n[m][4] = b.x, n[m][5] = b.y, n[m][6] = b.z, n[m][7] = b.w;
                }
#pragma unroll
                for (int j = 0; j < 8; j++)
                    most = fmaxf(most, fabsf(n[m][j]));
            }
#pragma unroll
            for (int j = LANES / 2; j; j /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
            query_power(most, &down, &up);
#pragma unroll
            for (int m = 0; m < OWN; m++) {
                uint32_t h[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    h[j] = two_halves<row::HALF>(n[m][2 * j] * down, n[m][2 * j + 1] * down);
                store_16(queries + piece_at(r, i + m * LANES, ROWS), make_uint4(h[0], h[1], h[2], h[3]));
            }
            if (i == 0)
                scales[r] = x.scale * LOG2_E * up;
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

    /* The group's first token after t that begins a run, or its end. */
    __device__ __forceinline__ int run_end(int t) const {
        for (t++; t < end(); t = (t / 32 + 1) * 32) {
            const uint32_t bits = starts[t / 32] >> (t % 32);
            if (bits)
                return min(t + __ffs(bits) - 1, end());
        }
        return end();
    }

    /* Loads the block indices of positions [key, to), at most IDS. */
    __device__ __forceinline__ void load_ids(const gpu_call &c, int slot, int key, int to) {
        int bad = 0;
        const int first = key >> x.shift, last = (to - 1) >> x.shift, end = last < first + IDS ? last + 1 : first + IDS;
        for (int b = first + threadIdx.x; b < end; b += 256)
            ids[b & (IDS - 1)] = good_block(x, x.table[slot * x.table_stride + b], &bad);
        if (bad)
            fault(&c);
    }

    /* Starts loading keys and values of positions key to key + STEP - 1; those outside of [from, to) become 0, and so does what
     * a row has beyond the head's numbers. */
    __device__ __forceinline__ void fetch(int key, int from, int to, int stage) {
        const int i = threadIdx.x % PIECES;
        const uint32_t k_at = ring + stage * 2 * KV_BYTES, v_at = k_at + KV_BYTES;
#pragma unroll
        for (int n = 0; n < ROWS_EACH; n++) {
            const int r = threadIdx.x / PIECES + n * (256 / PIECES), pos = key + r;
            const int seen = pos >= from && pos < to && (!ANY || 8 * i < width());
            const int block = seen ? ids[pos >> x.shift & (IDS - 1)] : 0;
            const uint32_t in = (x.head * x.block + (pos & (x.block - 1))) * row::bytes(width());
            const uint8_t *k = x.k + (uint64_t)block * x.k_stride + in, *v = x.v + (uint64_t)block * x.v_stride + in;
            const uint32_t at = piece_at(r, i, STEP);
            if (row::PLAIN) {
                copy_16(k_at + at, k + 16 * i, seen);
                copy_16(v_at + at, v + 16 * i, seen);
            } else {
                const uint4 none = make_uint4(0, 0, 0, 0);
                const uint4 a = seen ? cache_eight<FORMAT>(k, i) : none, b = seen ? cache_eight<FORMAT>(v, i) : none;
                store_16(k_at + at, a);
                store_16(v_at + at, b);
            }
        }
        copies_close();
    }
};

/* A lane's softmax state of its two rows, and its part of the weighted sums of values. */
template <int COLUMNS> struct row_state {
    float o[COLUMNS / 2], most[2], total[2];
    int from[2], to[2], pos[2]; /* the rows see positions [from, to), none outside of their run */
};

/* Online softmax: turns the scores of a step's keys from `key` on into weights, in place, and rescales the state to the new
 * largest scores. */
template <class A, int COLUMNS, int SCORES>
static __device__ __forceinline__ void softmax_step(const A &a, row_state<COLUMNS> &w, float (&s)[SCORES], int key) {
    const int c = threadIdx.x % 4;
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int from = w.from[h], to = w.to[h];
        const float own = a.scales[A::own_row(h)], scale = a.shape.on ? 1 : own;
        float most = w.most[h], sum = 0;
        if (a.shape.on)
#pragma unroll
            for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    s[4 * j + 2 * h + e] = capped(a.shape, s[4 * j + 2 * h + e], own);
        if (a.shape.slopes) {
            const float distance = (float)(key + 2 * c - w.pos[h]);
#pragma unroll
            for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    s[4 * j + 2 * h + e] = fmaf(-a.slope, fabsf(distance + (8 * j + e)), s[4 * j + 2 * h + e]);
        }
        if (key < from || key + A::STEP > to) {
#pragma unroll
            for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = key + 8 * j + 2 * c + e;
                    if (at < from || at >= to)
                        s[4 * j + 2 * h + e] = -INFINITY;
                }
        }
#pragma unroll
        for (int j = 0; j < SCORES / 4; j++)
            most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        const float base = most == -INFINITY ? 0 : most * scale;
        keep[h] = power_of_two(fmaf(w.most[h], scale, -base));
        w.most[h] = most;
#pragma unroll
        for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float p = power_of_two(fmaf(s[4 * j + 2 * h + e], scale, -base));
                s[4 * j + 2 * h + e] = p;
                sum += p;
            }
        w.total[h] = w.total[h] * keep[h] + sum;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[4 * j + e] *= keep[e / 2];
}

/* Adds the warpgroups' scores. The next step's begin no earlier than the barrier before it. */
template <int SCORES> static __device__ __forceinline__ void add_scores(float *sums, float (&s)[SCORES]) {
    float *own = sums + threadIdx.x, *other = sums + (threadIdx.x ^ 128);
#pragma unroll
    for (int j = 0; j < SCORES; j++)
        own[256 * j] = s[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < SCORES; j++)
        s[j] += other[256 * j];
}

template <class A, int COLUMNS>
static __device__ __forceinline__ void attend(const A &a, row_state<COLUMNS> &w, int key, int stage) {
    constexpr bool HALF = A::row::HALF;
    constexpr int STEP = A::STEP, TILES = COLUMNS / 64 /* of 64 columns */;
    const int part = A::part();
    const uint32_t k_at = a.ring + stage * 2 * A::KV_BYTES + part * TILES * (STEP * 128), v_at = k_at + A::KV_BYTES;
    const uint32_t q_at = a.queries + (A::PARTS > 1 ? part * TILES * (A::ROWS * 128) : threadIdx.x / 128 * (64 * 128));
    float s[STEP / 2];
    products_open();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++)
        scores_of<HALF>(s, operand_at(q_at + i / 4 * (A::ROWS * 128) + i % 4 * 32, 1024, 16),
                        operand_at(k_at + i / 4 * (STEP * 128) + i % 4 * 32, 1024, 16), i);
    products_close();
    products_wait<0>();
    if constexpr (A::PARTS > 1)
        add_scores(a.sums, s);
    softmax_step(a, w, s, key);
    uint32_t p[STEP / 16][4];
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[i][e] = two_halves<HALF>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
    products_open();
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        sums_of<HALF>(w.o, p[i], operand_at(v_at + i * 2048, 1024, STEP * 128));
    products_close();
    products_wait<0>();
}

template <class A, int COLUMNS>
static __device__ __forceinline__ void walk_run(const gpu_call &c, A &a, row_state<COLUMNS> &w, int first, int end) {
    const int slot = a.slots[first], pos = a.places[first], last = pos + (end - first) - 1;
    const int fed = A::BEHIND || a.x.causal ? last : last_of_slot(c, slot);
    const int from = sight_of(a.x, pos, fed).from, to = sight_of(a.x, last, fed).to;
    int stage = 0;
    if (!place_good(a.x, slot, pos) || !place_good(a.x, slot, to - 1)) {
        fault(&c);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int t = a.begin() + A::own_row(h), own = t >= first && t < end;
        const sight s = own ? sight_of(a.x, pos + t - first, fed) : sight{0, 0};
        w.from[h] = s.from, w.to[h] = s.to, w.pos[h] = pos + t - first;
    }
    const int start = from / A::STEP * A::STEP, whole = a.x.block < A::STEP ? IDS * a.x.block : IDS * A::STEP;
    a.load_ids(c, slot, start, to);
    __syncthreads();
    a.fetch(start, from, to, 0);
    for (int key = start; key < to; key += A::STEP, stage ^= 1) {
        copies_wait<0>();
        shared_to_async();
        __syncthreads();
        if (key + A::STEP < to) {
            if (((key + A::STEP - start) & (whole - 1)) == 0) {
                a.load_ids(c, slot, key + A::STEP, to);
                __syncthreads();
            }
            a.fetch(key + A::STEP, from, to, stage ^ 1);
        }
        attend(a, w, key, stage);
    }
    __syncthreads();
}

/* Divides the sums by their weights and writes them. */
template <class A, int COLUMNS>
static __device__ __forceinline__ void write_rows(const gpu_call &c, const A &a, const row_state<COLUMNS> &w, int first,
                                                  int head) {
    const float sink = sink_of(c, head);
    const int column = A::part() * COLUMNS + threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = A::own_row(h);
        const float scale = a.shape.on ? 1 : a.scales[row];
        float total = w.total[h];
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        const float share = share_of(w.most[h] == -INFINITY ? w.most[h] : w.most[h] * scale, total, sink);
        float *y =
            (float *)(c.v[0].data + (uint64_t)(first + a.begin() + row) * c.v[0].stride) + head * a.width() + column;
        if (a.begin() + row < a.end())
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++)
                if (column + 8 * j < a.width())
                    *(float2 *)(y + 8 * j) = make_float2(w.o[4 * j + 2 * h] * share, w.o[4 * j + 2 * h + 1] * share);
    }
}

template <int FORMAT, int D, bool ANY> static __device__ __forceinline__ void attention_tile(const gpu_call &c) {
    typedef wide_attention<FORMAT, D, ANY> A;
    extern __shared__ uint8_t memory[];
    const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
    const int heads = c.v[1].shape[1], head = blockIdx.x % heads, all = rows_of(&c, &c.v[1]);
    const int groups = (all + TOKENS - 1) / TOKENS * A::PARTS, group = groups - 1 - (int)(blockIdx.x / heads);
    const int tile = group / A::PARTS, first = tile * TOKENS;
    if (group < 0)
        return;
    A a;
    a.x = caches_of(c, head / (heads / c.v[2].shape[1]));
    a.x.causal = A::BEHIND || a.x.causal;
    a.shape = ANY ? shaping_of(c) : shaping{};
    a.slope = ANY ? slope_of(c, head) : 0;
    a.numbers = c.v[1].shape[2];
    a.queries = base;
    a.ring = base + A::Q_BYTES;
    a.sums = (float *)(memory + (base - shared_address(memory)) + A::Q_BYTES + 4 * A::KV_BYTES);
    a.scales = a.sums + (A::PARTS > 1 ? 256 * (A::STEP / 2) : 0);
    a.slots = (int *)a.scales + TOKENS;
    a.places = a.slots + TOKENS;
    a.starts = (uint32_t *)a.places + TOKENS;
    a.ids = (int32_t *)a.starts + 16;
    a.tokens = all - first < TOKENS ? all - first : TOKENS;
    a.half = group % A::PARTS;
    a.load_places(c, first);
    __syncthreads();
    const int few = a.short_runs();
    if (head == 0 && threadIdx.x == 0 && a.begin() == 0)
        ((int32_t *)c.scratch)[tile] = few;
    if (few || a.begin() >= a.end())
        return;
    a.load_queries(c.v[1], first, head);
    __syncthreads();
    row_state<A::COLUMNS> w;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.most[h] = -INFINITY;
        w.total[h] = 0;
    }
#pragma unroll
    for (int i = 0; i < A::COLUMNS / 2; i++)
        w.o[i] = 0;
    for (int t = a.begin(); t < a.end();) {
        const int end = a.run_end(t);
        walk_run(c, a, w, t, end);
        t = end;
    }
    write_rows(c, a, w, first, head);
}

#define ATTENTION(name, FORMAT, D, ANY, GROUPS)                                                                        \
    extern "C" __global__ void __launch_bounds__(256, GROUPS) name(const __grid_constant__ gpu_call c) {               \
        asm volatile("griddepcontrol.wait;" ::: "memory");                                                             \
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");                                                \
        attention_tile<FORMAT, D, ANY>(c);                                                                             \
    }
#define ATTENTIONS(format, FORMAT)                                                                                     \
    ATTENTION(attention_wide_64_##format, FORMAT, 64, false, 2)                                                        \
    ATTENTION(attention_wide_128_##format, FORMAT, 128, false, 2)                                                      \
    ATTENTION(attention_wide_256_##format, FORMAT, 256, false, 1)                                                      \
    ATTENTION(attention_wide_any_64_##format, FORMAT, 64, true, 2)                                                     \
    ATTENTION(attention_wide_any_128_##format, FORMAT, 128, true, 2)                                                   \
    ATTENTION(attention_wide_any_256_##format, FORMAT, 256, true, 1)                                                   \
    ATTENTION(attention_wide_any_512_##format, FORMAT, 512, true, 1)
ATTENTIONS(f16, CACHE_F16)
ATTENTIONS(bf16, CACHE_BF16)
ATTENTIONS(fp8, CACHE_FP8)
ATTENTIONS(q8_0, CACHE_Q8_0)
ATTENTIONS(q4_0, CACHE_Q4_0)
