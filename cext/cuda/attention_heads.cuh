/* attention_heads.cuh: what the kernels of a layer's attention steps share (attention_heads.cu, attention_bulk.cu): the split of the past that
 * a group takes, the step's queries, keys and values before and after RoPE, and their write to the cache.
 */
#ifndef SATCHEL_CUDA_ATTENTION_HEADS_CUH
#define SATCHEL_CUDA_ATTENTION_HEADS_CUH

#include "attention_few.cuh"
#include "heads.h"
#include "tile.cuh"

/* A head's sink, the last input, times log2(e). */
static __device__ __forceinline__ float head_sink(const gpu_call &c, int head) {
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int own = 9 + 3 * a->biases + 2 * a->norms;
    return (int)c.n_in > own ? ((const float *)c.v[c.n_in].data)[head] * LOG2_E : -INFINITY;
}

/* A split of the past of one slot and KV head, for `count` tokens from `token` on, at positions from `pos` on. Of the step's tokens `fresh`
 * have keys that these see, at positions from `first` on; of HEADS_FEW each lane has the row of its token's key among them, or -1.
 * holes: these positions are not in a row, so the past ends at the token's own, and theirs are skipped. */
struct heads_past {
    int token, count, slot, pos, good;
    int first, fresh, row;
    int split, used, most /* splits, at most */, from, begin, end;
    bool holes;
};

/* Which keys of the step a token or a run sees. False: their positions are not in a row. Called by whole warps. */
static __device__ __forceinline__ bool find_fresh(const gpu_call &c, const caches &x, heads_past &p) {
    const int lane = threadIdx.x % 32, last = p.pos + p.count - 1, here = lane < rows_now(c, c.v[1]);
    const int slot = here ? i32_at(&c.v[4], lane) : -1, pos = here ? i32_at(&c.v[5], lane) : -1;
    p.from = sight_of(x, p.pos, p.pos).from;
    const uint32_t seen = __ballot_sync(~0u, here && slot == p.slot && pos >= p.from && pos <= last);
    const bool own = seen >> lane & 1;
    p.fresh = __popc(seen);
    p.first = (int)__reduce_min_sync(~0u, own ? (uint32_t)pos : ~0u);
    p.holes = last - p.first + 1 != p.fresh;
    p.row = !own ? -1 : p.holes ? __popc(seen & ((1u << lane) - 1)) : pos - p.first;
    if (p.holes)
        p.first = p.pos;
    return !p.holes;
}

/* The token whose key is in a row that find_fresh gave; the row of the first token's own. Called by whole warps. */
static __device__ __forceinline__ int token_of_row(const heads_past &p, int row) {
    return __ffs(__ballot_sync(~0u, p.row == row)) - 1;
}

static __device__ __forceinline__ int row_of_token(const heads_past &p) {
    return __shfl_sync(~0u, p.row, p.token);
}

/* Of a step of up to WALKERS tokens: which of the 32 from 32 * part on have keys that the past's one token sees beside its own. Called by whole
 * warps. */
static __device__ __forceinline__ uint32_t other_tokens(const gpu_call &c, const heads_past &p, int part) {
    const uint32_t own = p.token / 32 == part ? 1u << p.token % 32 : 0;
    const int token = 32 * part + threadIdx.x % 32, here = token < rows_now(c, c.v[1]);
    const int slot = here ? i32_at(&c.v[4], token) : -1, pos = here ? i32_at(&c.v[5], token) : -1;
    return __ballot_sync(~0u, here && slot == p.slot && pos >= p.from && pos <= p.pos) & ~own;
}

/* As find_fresh, of one token of up to WALKERS, whose keys have no rows. All slots and positions are asked for at once, and before it is known how
 * many tokens the step has. */
static __device__ __forceinline__ void count_fresh(const gpu_call &c, const caches &x, heads_past &p) {
    constexpr int PARTS = WALKERS / 32;
    const int now = rows_now(c, c.v[1]), lane = threadIdx.x % 32;
    int slot[PARTS], pos[PARTS], far = -1;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int token = 32 * part + lane, there = token < c.v[1].shape[0];
        slot[part] = there ? i32_at(&c.v[4], token) : -1;
        pos[part] = there ? i32_at(&c.v[5], token) : -1;
    }
    p.from = sight_of(x, p.pos, p.pos).from;
    p.fresh = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const bool seen = 32 * part + lane < now && slot[part] == p.slot && pos[part] >= p.from && pos[part] <= p.pos;
        p.fresh += __popc(__ballot_sync(~0u, seen));
        far = seen ? max(far, p.pos - pos[part]) : far;
    }
    p.first = p.pos - __reduce_max_sync(~0u, far);
    p.holes = p.pos - p.first + 1 != p.fresh;
    if (p.holes)
        p.first = p.pos;
}

/* UNIT: positions of which a split has whole multiples. */
template <int KIND, int UNIT = STRIDE>
static __device__ __forceinline__ heads_past past_of(const gpu_call &c, const caches &x) {
    constexpr bool MANY = KIND != HEADS_ONE;
    heads_past p = {};
    p.token = MANY ? blockIdx.y : 0, p.count = p.fresh = 1, p.split = MANY ? blockIdx.z : blockIdx.x;
    p.slot = i32_at(&c.v[4], p.token), p.pos = p.first = i32_at(&c.v[5], p.token);
    if constexpr (KIND == HEADS_MANY) {
        count_fresh(c, x, p);
    } else if constexpr (MANY) {
        const token_run run = run_of(c, x, p.token);
        heads_past all = p;
        all.token = run.first, all.count = run.count, all.pos = i32_at(&c.v[5], run.first);
        if (find_fresh(c, x, all) || run.count == 1) {
            p = all;
            p.count = run.first == (int)blockIdx.y ? run.count : 0; /* the first token's group takes it */
        } else {
            find_fresh(c, x, p);
        }
    } else {
        p.from = sight_of(x, p.pos, p.pos).from;
    }
    p.good = place_good(x, p.slot, p.pos) && place_good(x, p.slot, p.pos + max(p.count, 1) - 1);
    const int start = p.from / SPAN * SPAN, all = p.first - start;
    p.most = MANY ? gridDim.z : gridDim.x;
    if (p.count > 1) /* a run's results are many, and one group merges them */
        p.most = (p.most + 1) / 2;
    int chunk = HEADS_CHUNK;
    p.used = 1;
    if (all > chunk) {
        chunk = max(((all + p.most - 1) / p.most + UNIT - 1) / UNIT * UNIT, chunk);
        p.used = (all + chunk - 1) / chunk;
    }
    p.begin = start + p.split * chunk, p.end = min(p.begin + chunk, p.first);
    return p;
}

/* Of the group's i-th query, which of its tokens has it. */
static __device__ __forceinline__ int turn_of(const heads_past &p, int i, int heads) {
    return p.count > 1 ? i / heads : 0;
}

/* 16 keys and their values, from position `key` on, of which those in [from, to) count. */
template <int FORMAT, int D, int N, class ROWS, class SCORES>
static __device__ __forceinline__ void meet(warp_state<D, N> &w, const ROWS &keys, const ROWS &values, SCORES &scores,
                                            int stage, int key, int from, int to) {
    uint32_t b[N][2];
#pragma unroll
    for (int n = 0; n < N; n++)
        weigh<FORMAT, D, N>(w, keys, scores, stage, n, key, from, to, b[n]);
    add_values<FORMAT, D, N>(w, values, stage, b);
}

/* A lane's numbers of a head before RoPE, D / 32 in a row, with the cosines and sines of their pairs. */
template <int D> struct head_row {
    float x[D / 32], cosine[D / 32], sine[D / 32];
};

/* A head of the step: a query (part 0), a key (1) or a value (2). */
struct head_place {
    int part, token, head;
};

template <int D> static __device__ __forceinline__ head_row<D> load_row(const gpu_call &c, const head_place &h) {
    constexpr int N = D / 32;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int n_rot = h.part < 2 ? c.v[7].shape[1] : 0, half = n_rot / 2, at = N * ((int)threadIdx.x % 32);
    const float *table = ROW(const float, c.v + 7, h.token);
    head_row<D> r;
    load_numbers(r.x, ROW(const float, c.v + (h.part ? 7 + h.part : 1), h.token) + h.head * D + at);
    if (at >= n_rot) { /* not rotated */
    } else if (a->style == HAL_ROPE_HALVES) {
        load_numbers(r.cosine, table + (at < half ? at : at - half));
        load_numbers(r.sine, table + (at < half ? half + at : at));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            r.cosine[i] = r.cosine[i + 1] = table[(at + i) / 2];
            r.sine[i] = r.sine[i + 1] = table[half + (at + i) / 2];
        }
    }
    return r;
}

/* Finishes a head: adds its bias or takes its norm, then RoPE. A rotated number's other one is in another lane where halves are rotated, and
 * beside it otherwise. */
template <int D>
static __device__ __forceinline__ void finish_row(const gpu_call &c, const head_place &h, head_row<D> &r) {
    constexpr int N = D / 32;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int n_rot = h.part < 2 ? c.v[7].shape[1] : 0, half = n_rot / 2, lane = threadIdx.x % 32, at = N * lane;
    if (a->biases) {
        float bias[N];
        load_numbers(bias, (const float *)c.v[10 + h.part].data + h.head * D + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            r.x[i] += bias[i];
    }
    if (a->norms && h.part < 2) {
        float norm[N], sum = 0;
        load_numbers(norm, (const float *)c.v[10 + h.part].data + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum += r.x[i] * r.x[i];
#pragma unroll
        for (int o = 16; o > 0; o /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
        sum = sqrtf(sum / (float)D + a->eps);
#pragma unroll
        for (int i = 0; i < N; i++)
            r.x[i] = r.x[i] / sum * norm[i];
    }
    if (n_rot == 0)
        return;
    const bool halves = a->style == HAL_ROPE_HALVES, low = at < half;
    float other[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float far = __shfl_sync(0xFFFFFFFFu, r.x[i], low ? lane + half / N : lane - half / N),
                    near = i % 2 ? r.x[i - 1] : -r.x[i + 1];
        other[i] = halves ? low ? -far : far : near;
    }
    if (at < n_rot)
#pragma unroll
        for (int i = 0; i < N; i++)
            r.x[i] = r.x[i] * r.cosine[i] + other[i] * r.sine[i];
}

/* Writes a head in the cache's format; `own`: room of the warp's for a head. */
template <int FORMAT, int D>
static __device__ __forceinline__ void store_row(const head_row<D> &r, char *to, float *own) {
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32;
    if constexpr (FORMAT == CACHE_Q8_0 || FORMAT == CACHE_Q4_0) {
        __syncwarp();
        store_numbers(own + N * lane, r.x);
        __syncwarp();
        code_row<FORMAT, D>(to, lane, [&](int at) { return own[at]; });
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            code_row<FORMAT, D>(to, N * lane + i, [&](int) { return r.x[i]; });
    }
}

/* Where a group's shared memory holds what it prepares. */
template <int FORMAT, int D> struct heads_room {
    float *q /* the queries */, *own /* of a warp, a head on its way */;
    char *keys, *values; /* the step's, coded, rows of the cache's bytes */
};

/* The queries of the group's tokens to shared memory, then `fresh` of the step's keys and values, coded: token_of(row) gives their tokens, and
 * is called by whole warps. Of TEAM warps each takes every TEAM-th head, and loads the next one meanwhile. */
template <int FORMAT, int D, int TEAM = WARPS, class TOKEN_OF>
static __device__ __forceinline__ void prepare(const gpu_call &c, const heads_past &p, int kv_head, int heads,
                                               const heads_room<FORMAT, D> &room, int fresh, TOKEN_OF token_of) {
    constexpr int BYTES = cache_row<FORMAT>::bytes(D);
    const int lane = threadIdx.x % 32, queries = p.count * heads, all = queries + 2 * fresh;
    const auto place = [&](int i) -> head_place {
        const int key = i - queries, token = token_of(key < fresh ? key : key - fresh);
        if (key < 0)
            return {0, p.token + turn_of(p, i, heads), kv_head * heads + i - turn_of(p, i, heads) * heads};
        return {key < fresh ? 1 : 2, token, kv_head};
    };
    int i = threadIdx.x / 32;
    head_place next = {};
    head_row<D> coming = {};
    if (i < all)
        next = place(i), coming = load_row<D>(c, next);
    for (; i < all; i += TEAM) {
        const head_place h = next;
        head_row<D> r = coming;
        if (i + TEAM < all)
            next = place(i + TEAM), coming = load_row<D>(c, next);
        finish_row<D>(c, h, r);
        if (h.part)
            store_row<FORMAT, D>(
                r, (h.part == 1 ? room.keys : room.values) + (i - queries - (h.part == 1 ? 0 : fresh)) * BYTES,
                room.own);
        else
            store_numbers(room.q + i * D + D / 32 * lane, r.x);
    }
}

/* Writes the tokens' keys and values to the cache, by TEAM warps. block: the first token's; row: of its key among those in `room`. */
template <int FORMAT, int D, int TEAM = WARPS>
static __device__ __forceinline__ void write_rows(const caches &x, const heads_past &p,
                                                  const heads_room<FORMAT, D> &room, int row, int block, int *lost) {
    constexpr int BYTES = cache_row<FORMAT>::bytes(D);
    const int32_t *table = x.table + p.slot * x.table_stride;
    for (int t = 0; t < p.count; t++) {
        const int pos = p.pos + t, same = pos >> x.shift == p.pos >> x.shift;
        const int there = same ? block : good_block(x, table[pos >> x.shift], lost);
        if (*lost)
            continue;
        for (int h = 0; h < 2; h++) {
            uint8_t *to = (uint8_t *)(h ? x.v + (uint64_t)there * x.v_stride : x.k + (uint64_t)there * x.k_stride) +
                          (uint64_t)(x.head * x.block + (pos & (x.block - 1))) * BYTES;
            const char *from = (h ? room.values : room.keys) + (row + t) * BYTES;
            for (int i = threadIdx.x; i < BYTES / 2; i += 32 * TEAM)
                ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
        }
    }
}

#endif
