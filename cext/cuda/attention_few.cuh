/* attention_few.cuh: attention of one warp: a token's query heads over 16 keys at a time, and the merge of such results.
 * Shared by attention_split.cu and attention_heads.cu, which supply the source of keys and values: RING::piece(stage, i) gives
 * 16 bytes; for keys of rows g and g + 8, pieces 4 m + c; for values of rows 2 c, 2 c + 1 and those + 8, pieces 8 q + g.
 */
#ifndef SATCHEL_CUDA_ATTENTION_FEW_CUH
#define SATCHEL_CUDA_ATTENTION_FEW_CUH

#include "attention.h"
#include "columns_hand.cuh"
#include "kv_rows.k.h"

static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool half) {
    if (half)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* The tokens that a group takes at once: `count` from `first` on. */
struct token_run {
    int first, count;
};

/* The run that a token belongs to; of a short past each token is alone, for a run's end takes longer. Called by whole warps. */
static __device__ __forceinline__ token_run run_of(const gpu_call &c, const caches &x, int token) {
    const int most = run_tokens(c.v[1].shape[0], c.v[1].shape[1] / c.v[2].shape[1], c.v[1].shape[2]);
    const int now = rows_of(&c, &c.v[1]), lane = threadIdx.x % 32;
    if (most == 1)
        return {token, 1};
    const int follows = lane > 0 && lane < now && i32_at(&c.v[4], lane) == i32_at(&c.v[4], lane - 1) &&
                        i32_at(&c.v[5], lane) == i32_at(&c.v[5], lane - 1) + 1;
    const uint32_t begins = ~__ballot_sync(0xFFFFFFFFu, follows), before = (2u << token) - 1; /* FEW tokens at most */
    const int begin = 31 - __clz(begins & before), end = __ffs(begins & ~before) - 1;
    const int first = token - (token - begin) % most, count = min(most, end - first), pos = i32_at(&c.v[5], first);
    if (!x.causal || (pos + count - sight_of(x, pos, pos).from) * now < RUN_LEAST)
        return {token, 1};
    return {first, count};
}

/* State of the heads (2 c, 2 c + 1) of N groups of 8, over a warp's keys, for D columns; sums of column 64 q + 8 g + 2 w + {0, 1}
 * in o[4 q + w]. */
template <int D, int N> struct warp_state {
    float o[N][D / 16][4], most[N][2], total[N][2], scale[N][2];
    uint32_t q[N][D / 16][2];
};

/* Loads D columns of `width` of the query heads, from `first` on; those beyond the last are zeros. query: contiguous heads. Lane
 * (g, c) reads head g; the scales go to the lanes that hold the heads' scores. Of `per` heads each is a token's query, `apart` numbers
 * behind the token's before. */
template <int FORMAT, int D, int N>
static __device__ __forceinline__ void load_query(const float *query, int group, float scale, warp_state<D, N> &w,
                                                  int width = D, int first = 0, int per = 8 * N, int64_t apart = 0) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int head = 8 * n + g;
        float v[D / 4], most = 0, down, up;
        const float *own = query + head / per * apart + head % per * width, *from = own + first + 8 * i;
#pragma unroll
        for (int m = 0; m < D / 32; m++) {
            const float4 none = make_float4(0, 0, 0, 0);
            const bool there = head < group && first + 8 * i + 32 * m < width;
            const float4 a = there ? *(const float4 *)(from + 32 * m) : none;
            const float4 b = there ? *(const float4 *)(from + 32 * m + 4) : none;
            v[8 * m] = a.x, v[8 * m + 1] = a.y, v[8 * m + 2] = a.z, v[8 * m + 3] = a.w;
            v[8 * m + 4] = b.x, v[8 * m + 5] = b.y, v[8 * m + 6] = b.z, v[8 * m + 7] = b.w;
        }
#pragma unroll
        for (int k = 0; k < D / 4; k++)
            most = fmaxf(most, fabsf(v[k]));
        if (width > D && head < group) /* the other columns have the same scale */
            for (int k = i; k < width; k += 4)
                most = fmaxf(most, fabsf(own[k]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        query_power(most, &down, &up);
#pragma unroll
        for (int m = 0; m < D / 32; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w.q[n][2 * m + e / 2][e % 2] =
                    two_halves<cache_row<FORMAT>::HALF>(v[8 * m + 2 * e] * down, v[8 * m + 2 * e + 1] * down);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            w.scale[n][e] = __shfl_sync(0xFFFFFFFFu, up, 4 * (2 * i + e)) * scale * LOG2_E;
            w.most[n][e] = -INFINITY;
            w.total[n][e] = 0;
        }
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w.o[n][k][e] = 0;
    }
}

/* What is done to the scores of a warp's heads. PARTS > 1: as many warps, at distance 1, multiply parts of the columns of the same
 * keys and add their scores, in the order of columns, in `room`, which has place for two steps. */
template <int N, bool SHAPED, int PARTS> struct scoring {
    shaping shape;
    float up[N][2], slope[N][2]; /* a shaped score's scale; the softmax has none then */
    int at;                      /* the query's position */
    float *room;
    int turn;

    template <int D> __device__ __forceinline__ void begin(warp_state<D, N> &w) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                up[n][e] = w.scale[n][e];
                w.scale[n][e] = shape.on ? 1 : w.scale[n][e];
            }
    }

    __device__ __forceinline__ void add_parts(float (&s)[4]) {
        if constexpr (PARTS > 1) {
            const int warp = threadIdx.x / 32, first = warp / PARTS * PARTS;
            float4 *to = (float4 *)room + (turn * WARPS + first) * 32 + threadIdx.x % 32;
            to[(warp - first) * 32] = make_float4(s[0], s[1], s[2], s[3]);
            asm volatile("bar.sync %0, %1;" ::"r"(1 + first), "n"(32 * PARTS) : "memory");
            float4 sum = to[0];
#pragma unroll
            for (int i = 1; i < PARTS; i++) {
                const float4 x = to[32 * i];
                sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
            }
            s[0] = sum.x, s[1] = sum.y, s[2] = sum.z, s[3] = sum.w;
            turn ^= 1;
        }
    }

    /* Hides the scores of keys that are not in [from, to). */
    __device__ __forceinline__ void hide(float (&s)[4], int, int key, int from, int to) const {
        const int row = key + (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row + 8 * h < from || row + 8 * h >= to)
                s[2 * h] = s[2 * h + 1] = -INFINITY;
    }

    __device__ __forceinline__ void shape_scores(float (&s)[4], int n, int key) const {
        if (SHAPED && shape.on)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[i] = capped(shape, s[i], up[n][i % 2]);
                if (shape.slopes)
                    s[i] = fmaf(-slope[n][i % 2], (float)abs(key + (int)threadIdx.x % 32 / 4 + i / 2 * 8 - at), s[i]);
            }
    }
};

/* Of heads of several tokens, each of which sees positions of its own. */
template <int N> struct run_scoring : scoring<N, false, 1> {
    int from[N][2], to[N][2];

    __device__ __forceinline__ void hide(float (&s)[4], int n, int key, int, int) const {
        const int row = key + (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (row + i / 2 * 8 < from[n][i % 2] || row + i / 2 * 8 >= to[n][i % 2])
                s[i] = -INFINITY;
    }
};

/* A warp's prefetched steps in shared memory, of D columns of a row, of which pieces below `pieces` are there; the others are
 * zeros. Each lane has slots of its own for the pieces that it multiplies, so shared
 * memory serves as extra registers: no other lane reads them, and a lane waits for its own copies alone. */
template <int FORMAT, int D, bool ANY = false, int DEPTH = ring_stages(D, HOPPER)> struct lane_ring {
    static constexpr int PIECES = D / 8, STAGES = DEPTH, STAGE = PIECES * 512, WARP = STAGES * STAGE;
    static constexpr int PIECE = FORMAT == CACHE_FP8 ? 8 : 16; /* bytes of eight numbers in the cache */
    uint32_t at;
    int width, first, pieces; /* ANY: numbers of a row; its first piece here, and how many there are from there on */

    __device__ __forceinline__ int row_bytes(void) const {
        return cache_row<FORMAT>::bytes(ANY ? width : D);
    }

    __device__ __forceinline__ uint32_t place(int stage, int piece) const {
        return at + stage * STAGE + piece * 512;
    }

    /* Copies the piece at `from`, its lane's i-th. */
    __device__ __forceinline__ void bring(uint32_t to, const uint8_t *from, int i, int seen) const {
        if (ANY) {
            seen = seen && i < pieces;
            from = seen ? from : from - PIECE * (i + first);
        }
        if (FORMAT == CACHE_FP8)
            copy_8(to, from, seen);
        else
            copy_16(to, from, seen);
    }

    __device__ __forceinline__ uint4 take(const uint8_t *row, int i, int seen) const {
        if (ANY)
            seen = seen && i < pieces;
        return seen ? cache_eight<FORMAT>(row, ANY ? i + first : i) : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ uint4 piece(int stage, int i) const {
        uint4 x;
        if (FORMAT == CACHE_FP8) {
            uint2 raw;
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                         : "=r"(raw.x), "=r"(raw.y)
                         : "r"(place(stage, i))
                         : "memory");
            return halves_of_fp8(raw);
        }
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(place(stage, i))
                     : "memory");
        return x;
    }

    /* Blocks of 34 or 18 bytes are not aligned for cp.async: they are loaded through registers, all at once. */
    __device__ __forceinline__ void fetch_blocks(const uint8_t *k, const uint8_t *v, int stage, int key, int from,
                                                 int to) const {
        const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, bytes = row_bytes();
        uint4 p[D / 16];
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const int row = g + 8 * (i / (D / 32)), seen = key + row >= from && key + row < to;
            p[i] = take(k + row * bytes, 4 * (i % (D / 32)) + c, seen);
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            store_16(place(stage, i), p[i]);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const int h = i / (D / 64), row = 2 * c + h % 2 + h / 2 * 8, seen = key + row >= from && key + row < to;
            p[i] = take(v + row * bytes, 8 * (i % (D / 64)) + g, seen);
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            store_16(place(stage, D / 16 + i), p[i]);
    }

    /* Pieces of keys and values of the 16 positions from key on, of which those in [from, to) count. Keys: rows g and g + 8,
     * pieces 4 m + c; values: rows 2 c, 2 c + 1, and 8 more, pieces 8 q + g. */
    __device__ __forceinline__ void fetch(const caches &x, int stage, int block, int key, int from, int to) const {
        const int bytes = row_bytes();
        const uint64_t in = (uint64_t)(x.head * x.block + (key & (x.block - 1))) * bytes;
        const uint8_t *k = x.k + (uint64_t)block * x.k_stride + in, *v = x.v + (uint64_t)block * x.v_stride + in;
        if constexpr (!cache_row<FORMAT>::PLAIN && FORMAT != CACHE_FP8)
            fetch_blocks(k, v, stage, key, from, to);
        else
            fetch_pieces(k, v, stage, key, from, to);
    }

    /* A lane's addresses differ from its first by constants. */
    __device__ __forceinline__ void fetch_pieces(const uint8_t *k, const uint8_t *v, int stage, int key, int from,
                                                 int to) const {
        const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, bytes = row_bytes(), skip = ANY ? first : 0;
        const uint8_t *const keys = k + (g * bytes + PIECE * (c + skip));
        const uint8_t *const values = v + (2 * c * bytes + PIECE * (g + skip));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = key + g + 8 * h, seen = row >= from && row < to;
#pragma unroll
            for (int m = 0; m < D / 32; m++)
                bring(place(stage, h * (D / 32) + m), keys + 8 * h * bytes + 4 * PIECE * m, 4 * m + c, seen);
        }
#pragma unroll
        for (int h = 0; h < 4; h++) {
            const int in = h % 2 + h / 2 * 8, row = key + 2 * c + in, seen = row >= from && row < to;
#pragma unroll
            for (int q = 0; q < D / 64; q++)
                bring(place(stage, D / 16 + h * (D / 64) + q), values + in * bytes + 8 * PIECE * q, 8 * q + g, seen);
        }
    }
};

/* Online softmax: turns the scores of 16 keys into weights p, as operands, and rescales the sums to the new largest scores. */
template <int FORMAT, int D, int N, class RING, class SCORING>
static __device__ __forceinline__ void weigh(warp_state<D, N> &w, const RING &ring, SCORING &scores, int stage, int n,
                                             int key, int from, int to, uint32_t (&b)[2]) {
    const bool half = cache_row<FORMAT>::HALF;
    float s[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}, base[2], keep[2];
#pragma unroll
    for (int m = 0; m < D / 32; m++) {
        const uint4 x = ring.piece(stage, m), y = ring.piece(stage, D / 32 + m);
        const uint32_t a[2][4] = {{x.x, y.x, x.y, y.y}, {x.z, y.z, x.w, y.w}};
        mma(s, a[0], w.q[n][2 * m][0], w.q[n][2 * m][1], half);
        mma(odd, a[1], w.q[n][2 * m + 1][0], w.q[n][2 * m + 1][1], half);
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        s[e] += odd[e];
    scores.add_parts(s);
    scores.shape_scores(s, n, key);
    scores.hide(s, n, key, from, to);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float most = fmaxf(s[e], s[2 + e]);
#pragma unroll
        for (int j = 4; j < 32; j *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
        most = fmaxf(most, w.most[n][e]);
        base[e] = most == -INFINITY ? 0 : most * w.scale[n][e];
        keep[e] = power_of_two(fmaf(w.most[n][e], w.scale[n][e], -base[e]));
        w.most[n][e] = most;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float p0 = power_of_two(fmaf(s[2 * h], w.scale[n][0], -base[0])),
                    p1 = power_of_two(fmaf(s[2 * h + 1], w.scale[n][1], -base[1]));
        w.total[n][0] = h ? w.total[n][0] + p0 : w.total[n][0] * keep[0] + p0;
        w.total[n][1] = h ? w.total[n][1] + p1 : w.total[n][1] * keep[1] + p1;
        b[h] = transposed(two_halves<cache_row<FORMAT>::HALF>(p0, p1));
    }
    if (!__any_sync(0xFFFFFFFFu, keep[0] != 1 || keep[1] != 1)) /* most steps find no larger score */
        return;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[n][k][e] *= keep[e % 2];
}

template <int FORMAT, int D, int N, class RING>
static __device__ __forceinline__ void add_values(warp_state<D, N> &w, const RING &ring, int stage,
                                                  const uint32_t (&b)[N][2]) {
#pragma unroll
    for (int q = 0; q < D / 64; q++) {
        uint4 v[4];
#pragma unroll
        for (int h = 0; h < 4; h++)
            v[h] = ring.piece(stage, D / 16 + h * (D / 64) + q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t x0 = word_of(v[0], i), x1 = word_of(v[1], i), x2 = word_of(v[2], i), x3 = word_of(v[3], i);
            const uint32_t a[4] = {__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632),
                                   __byte_perm(x2, x3, 0x5410), __byte_perm(x2, x3, 0x7632)};
#pragma unroll
            for (int n = 0; n < N; n++)
                mma(w.o[n][4 * q + i], a, b[n][0], b[n][1], cache_row<FORMAT>::HALF);
        }
    }
}

/* Keys or values of 16 positions as they lie in the cache, of which rows [from, to) are there. */
template <int FORMAT, int D> struct past_rows {
    const char *at;
    int stride, from, to;
    __device__ __forceinline__ uint4 eight(int row, int i) const {
        const uint8_t *p = (const uint8_t *)at + row * stride;
        uint4 x;
        if (!cache_row<FORMAT>::PLAIN)
            return cache_eight<FORMAT>(p, i);
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(shared_address(p) + 16 * i));
        return x;
    }
    __device__ __forceinline__ uint4 piece(int, int i) const {
        const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        if (i < D / 16)
            return eight(g + 8 * (i / (D / 32)), 4 * (i % (D / 32)) + c);
        const int h = (i - D / 16) / (D / 64), row = 2 * c + h % 2 + h / 2 * 8;
        const uint4 x = eight(row, 8 * ((i - D / 16) % (D / 64)) + g);
        return row >= from && row < to ? x : make_uint4(0, 0, 0, 0);
    }
};

/* In shared memory: for each warp (where warps share keys, for all of these) and head the largest score (times its scale), the
 * weights' sum, and D sums of values; the group's own result overwrites that of warp 0. */
template <int D> struct shared_results {
    float *at;
    int heads;
    __device__ __forceinline__ float *of(int part, int head) const {
        return at + (part * heads + head) * (D + RESULT_HEAD);
    }
};

template <int COLUMNS, int N, int D>
static __device__ __forceinline__ void leave(const warp_state<COLUMNS, N> &w, const shared_results<D> &r) {
    constexpr int PARTS = D / COLUMNS;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int head = 8 * n + 2 * c + e;
            float total = w.total[n][e];
#pragma unroll
            for (int j = 4; j < 32; j *= 2)
                total += __shfl_xor_sync(0xFFFFFFFFu, total, j);
            if (head >= r.heads)
                continue;
            float *to = r.of(warp / PARTS, head);
            if (g == 0)
                to[0] = w.most[n][e] == -INFINITY ? -INFINITY : w.most[n][e] * w.scale[n][e], to[1] = total;
#pragma unroll
            for (int k = 0; k < COLUMNS / 16; k++) {
                float *column = to + RESULT_HEAD + warp % PARTS * COLUMNS + k / 4 * 64 + 8 * g + 2 * (k % 4);
                column[0] = w.o[n][k][e], column[1] = w.o[n][k][2 + e];
            }
        }
}

/* Merges the parts of each of a group's results, by all its threads: parts(head), 32 at most, is how many a head has, part(head) the address of
 * the first, and `apart` numbers lie between two of them. done(head, number, sum, most, total) takes four numbers of what is merged, with the
 * largest score and the sum of weights. In order of the parts. A warp has a head, a lane four numbers at a time of all parts. */
template <class PARTS, class PART, class DONE>
static __device__ __forceinline__ void merge_parts(int heads, int width, int64_t apart, PARTS parts, PART part,
                                                   DONE done) {
    constexpr int AT_ONCE = 8;
    const int lane = threadIdx.x % 32;
    for (int head = threadIdx.x / 32; head < heads; head += WARPS) {
        const int all = parts(head);
        const float *const first = part(head);
        float2 own = make_float2(-INFINITY, 0);
        if (lane < all)
            own = *(const float2 *)(first + lane * apart);
        float most = own.x;
#pragma unroll
        for (int j = 1; j < 32; j *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
        const float share = power_of_two(own.x - (most == -INFINITY ? 0 : most));
        float total = own.y * share;
#pragma unroll
        for (int j = 1; j < 32; j *= 2)
            total += __shfl_xor_sync(0xFFFFFFFFu, total, j);
        for (int begin = 0; begin < width && all > 0; begin += 128) {
            const int at = begin + 4 * lane;
            float4 sum = make_float4(0, 0, 0, 0);
            for (int i = 0; i < all; i += AT_ONCE) {
                float4 x[AT_ONCE];
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    if (i + j < all && at < width)
                        x[j] = *(const float4 *)(first + (i + j) * apart + RESULT_HEAD + at);
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    const float its = __shfl_sync(0xFFFFFFFFu, share, i + j & 31);
                    if (i + j < all && at < width)
                        sum.x += x[j].x * its, sum.y += x[j].y * its, sum.z += x[j].z * its, sum.w += x[j].w * its;
                }
            }
            if (at < width)
                done(head, at, sum, most, total);
        }
    }
}

/* Leaves four numbers of a result, from `number` on. */
static __device__ __forceinline__ void leave_four(float *result, int number, float4 sum, float most, float total) {
    *(float4 *)(result + RESULT_HEAD + number) = sum;
    if (number == 0)
        *(float2 *)result = make_float2(most, total);
}

static __device__ __forceinline__ float4 times(float4 x, float factor) {
    return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

/* Writes numbers `at` to at + 3 of a token's row, and hands them over. */
static __device__ __forceinline__ void write_four(const gpu_call &c, int token, int at, float4 x) {
    float *y = (float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + at;
    y[0] = x.x, y[1] = x.y, y[2] = x.z, y[3] = x.w;
    if (c.handed.at)
        columns_hand(c, token, at, x);
}

/* Quantizes a head's elements to the cache's format, one unit per thread. */
template <int FORMAT, int D, class F> static __device__ __forceinline__ void code_row(char *to, int thread, F number) {
    constexpr int UNIT = FORMAT == CACHE_Q8_0 || FORMAT == CACHE_Q4_0 ? 32 : 1;
    if (thread < 0 || thread >= D / UNIT)
        return;
    if constexpr (FORMAT == CACHE_F16) {
        ((uint16_t *)to)[thread] = half_of_float(number(thread));
    } else if constexpr (UNIT == 1) {
        kv_store_one(FORMAT, number(thread), to, thread);
    } else {
        float x[UNIT];
#pragma unroll
        for (int j = 0; j < UNIT; j++)
            x[j] = number(thread * UNIT + j);
        kv_store_block(FORMAT, x, to, thread);
    }
}

#endif
