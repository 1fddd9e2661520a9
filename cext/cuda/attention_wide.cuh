/* attention_wide.cuh: a group of attention over paged caches, by wgmma, on other devices than Hopper by mma.sync: its rows, keys, online softmax and weighted sums. Shared by
 * attention_wide.cu and attention_fixed.cu.
 */
#ifndef SATCHEL_CUDA_ATTENTION_WIDE_CUH
#define SATCHEL_CUDA_ATTENTION_WIDE_CUH

#include "attention.h"
#include "tile.cuh"
#include "wgmma.h"

#if HOPPER
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

#endif

/* Not inlined: beside its loop the compiler would find too few registers for that over the keys. */
static __device__ __noinline__ int last_of_slot(const gpu_call &c, int slot) {
    return last_fed(c, slot);
}

/* SPLIT > 0: each row's keys are cut at multiples of so many positions; every split has a softmax of its own, and their results are
 * merged in order. THREADS: 256, or, with SPLIT, 128, which have half of the rows. CUT: parts of the columns, 1 or 2. */
template <int FORMAT, int D, bool ANY, int SPLIT = 0, int THREADS = 256, int CUT = column_parts(D)>
struct wide_attention {
    typedef cache_row<FORMAT> row;
    static constexpr bool BEHIND = !ANY; /* no token sees what follows it */
    static constexpr int PARTS = CUT, COLUMNS = D / PARTS;
    static constexpr int ROWS = TOKENS / PARTS / (256 / THREADS),
                         STEP = wide_keys(D, HOPPER) / PARTS; /* of a group, keys of a step */
    static constexpr int POSITIONS = SPLIT;
    static constexpr int Q_BYTES = ROWS * D * 2, KV_BYTES = STEP * D * 2, PIECES = D / 8;
    static constexpr int ROWS_EACH = STEP * PIECES / THREADS; /* rows of keys per thread, a piece of each */
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

    /* Loads the group's queries as f16, and the scales of their scores. query(r): where that of row r is, NULL: nowhere. */
    template <class QUERY> __device__ __forceinline__ void load_queries(QUERY query) {
        constexpr int LANES = PIECES < 32 ? PIECES : 32, EACH = 32 / LANES, OWN = PIECES / LANES;
        const int lane = threadIdx.x % 32, i = lane % LANES;
        for (int r = threadIdx.x / 32 * EACH + lane / LANES; r < ROWS; r += THREADS / 32 * EACH) {
            const float *row_at = query(r);
            float n[OWN][8] = {{0}}, most = 0, down, up;
#pragma unroll
            for (int m = 0; m < OWN; m++) {
                const int at = 8 * (i + m * LANES);
                if (row_at && (!ANY || at < width())) {
                    const float4 *from = (const float4 *)row_at + at / 4;
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
        for (int b = first + threadIdx.x; b < end; b += THREADS)
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
            const int r = threadIdx.x / PIECES + n * (THREADS / PIECES), pos = key + r;
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
        /* The difference is rounded, so not 0 for the same score: keys that a row does not see would change its bits. */
        keep[h] = A::POSITIONS && most == w.most[h] ? 1 : power_of_two(fmaf(w.most[h], scale, -base));
        w.most[h] = most;
#pragma unroll
        for (int j = 0; j < SCORES / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float p = power_of_two(fmaf(s[4 * j + 2 * h + e], scale, -base));
                s[4 * j + 2 * h + e] = p;
                sum += p;
            }
        w.total[h] = fmaf(w.total[h], keep[h], sum);
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

/* A step's scores of this thread's rows: queries times keys. */
template <class A, int COLUMNS>
static __device__ __forceinline__ void multiply_keys(const A &a, float (&s)[A::STEP / 2], uint32_t k_at) {
    constexpr bool HALF = A::row::HALF;
#if HOPPER
    constexpr int TILES = COLUMNS / 64 /* of 64 columns */;
    const uint32_t q_at =
        a.queries + (A::PARTS > 1 ? A::part() * TILES * (A::ROWS * 128) : threadIdx.x / 128 * (64 * 128));
    products_open();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++)
        scores_of<HALF>(s, operand_at(q_at + i / 4 * (A::ROWS * 128) + i % 4 * 32, 1024, 16),
                        operand_at(k_at + i / 4 * (A::STEP * 128) + i % 4 * 32, 1024, 16), i);
    products_close();
    products_wait<0>();
#else
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % (A::ROWS / 16) * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < A::STEP / 2; i++)
        s[i] = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) {
        uint32_t q[4];
        load_matrices(q, a.queries + piece_at(row, A::part() * (COLUMNS / 8) + 2 * i + lane / 16, A::ROWS));
#pragma unroll
        for (int n = 0; n < A::STEP / 16; n++) {
            uint32_t k[4];
            load_matrices(k, k_at + piece_at(16 * n + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2, A::STEP));
            mma_16<HALF>(s + 8 * n, q, k[0], k[1]);
            mma_16<HALF>(s + 8 * n + 4, q, k[2], k[3]);
        }
    }
#endif
}

/* Adds a step's values, weighted by p. */
template <class A, int COLUMNS>
static __device__ __forceinline__ void add_weighted(row_state<COLUMNS> &w, const uint32_t (&p)[A::STEP / 16][4],
                                                    uint32_t v_at) {
    constexpr bool HALF = A::row::HALF;
#if HOPPER
    products_open();
#pragma unroll
    for (int i = 0; i < A::STEP / 16; i++)
        sums_of<HALF>(w.o, p[i], operand_at(v_at + i * 2048, 1024, A::STEP * 128));
    products_close();
    products_wait<0>();
#else
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < A::STEP / 16; i++)
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t v[4];
            load_transposed(v, v_at + piece_at(16 * i + lane % 16, 2 * n + lane / 16, A::STEP));
            mma_16<HALF>(w.o + 8 * n, p[i], v[0], v[1]);
            mma_16<HALF>(w.o + 8 * n + 4, p[i], v[2], v[3]);
        }
#endif
}

template <class A, int COLUMNS>
static __device__ __forceinline__ void attend(const A &a, row_state<COLUMNS> &w, int key, int stage) {
    constexpr int STEP = A::STEP, TILES = COLUMNS / 64 /* of 64 columns */;
    const uint32_t k_at = a.ring + stage * 2 * A::KV_BYTES + A::part() * TILES * (STEP * 128),
                   v_at = k_at + A::KV_BYTES;
    float s[STEP / 2];
    multiply_keys<A, COLUMNS>(a, s, k_at);
    if constexpr (A::PARTS > 1)
        add_scores(a.sums, s);
    softmax_step(a, w, s, key);
    uint32_t p[STEP / 16][4];
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[i][e] = two_halves<A::row::HALF>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
    add_weighted<A, COLUMNS>(w, p, v_at);
}

/* Runs over the keys of a slot's positions [from, to), and calls split(a, w) at the end of each split. */
template <class A, int COLUMNS, class SPLIT>
static __device__ __forceinline__ void walk_keys(const gpu_call &c, A &a, row_state<COLUMNS> &w, int slot, int from,
                                                 int to, SPLIT split) {
    const int start = from / A::STEP * A::STEP, whole = a.x.block < A::STEP ? IDS * a.x.block : IDS * A::STEP;
    int stage = 0;
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
        if (A::POSITIONS && ((key + A::STEP) % A::POSITIONS == 0 || key + A::STEP >= to))
            split(a, w);
    }
    __syncthreads();
}

template <class A, int COLUMNS, class SPLIT>
static __device__ __forceinline__ void walk_run(const gpu_call &c, A &a, row_state<COLUMNS> &w, int first, int end,
                                                SPLIT split) {
    const int slot = a.slots[first], pos = a.places[first], last = pos + (end - first) - 1;
    const int fed = A::BEHIND || a.x.causal ? last : last_of_slot(c, slot);
    const int from = sight_of(a.x, pos, fed).from, to = sight_of(a.x, last, fed).to;
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
    walk_keys(c, a, w, slot, from, to, split);
}

template <int COLUMNS> static __device__ __forceinline__ void clear(row_state<COLUMNS> &w) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.most[h] = -INFINITY;
        w.total[h] = 0;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        w.o[i] = 0;
}

/* A tile of one query head. split(a, w) is called at the end of each split, write(a, w, first, head) in the end. */
template <class A, class SPLIT, class WRITE>
static __device__ __forceinline__ void attention_tile(const gpu_call &c, SPLIT split, WRITE write) {
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
    a.shape = A::BEHIND ? shaping{} : shaping_of(c);
    a.slope = A::BEHIND ? 0 : slope_of(c, head);
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
    a.load_queries([&](int r) {
        const gpu_view &q = c.v[1];
        return a.begin() + r < a.end()
                   ? (const float *)(q.data + (uint64_t)(first + a.begin() + r) * q.stride) + head * a.width()
                   : NULL;
    });
    __syncthreads();
    row_state<A::COLUMNS> w;
    clear(w);
    for (int t = a.begin(); t < a.end();) {
        const int end = a.run_end(t);
        walk_run(c, a, w, t, end, split);
        t = end;
    }
    write(a, w, first, head);
}

#endif
