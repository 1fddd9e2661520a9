/* attention_latent.cu: multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434) over paged caches of one row per
 * position, 512 numbers of a latent and 64 with RoPE: all query heads attend to the same row, whose latent is also the value.
 * The sparse form (DeepSeek-V3.2-Exp) reads listed positions instead of all. attention_parts (context parallelism) reads the
 * blocks that this rank of a group has, which deal_blocks lists first, and leaves softmax states.
 *
 * A group computes a tile of 64 rows (a row: a query head of a token) over the keys of a run or of a split, 64 at a time. Warps
 * 8 to 11 fetch rows, two warps for each of the two stages of the ring. Warpgroup 0 multiplies queries and keys, turns scores
 * into weights, and sums the left half of the values; warpgroup 1 sums the right half with the same weights, which it gets
 * through shared memory. The sums of a step are started before the scores of the next, whose rows may not be there yet, and
 * its stage is fetched anew while those scores are computed. (FlashMLA, github.com/deepseek-ai/FlashMLA, has both warpgroups
 * compute scores, of two steps in turn.) A row's bits depend on its own position and on the call's bucket alone: steps are at
 * fixed positions, and a masked key leaves a row unchanged.
 */
#include "latent_keys.cuh"
#include "wgmma.h"

/* Registers of a thread that fetches, and of one that multiplies: converting rows takes more than copying them. */
template <int FORMAT> struct latent_registers {
    static constexpr int FETCHING = cache_row<FORMAT>::PLAIN ? 56 : 88,
                         MULTIPLYING = cache_row<FORMAT>::PLAIN ? 224 : 208;
};

struct latent_group {
    caches x;
    uint32_t base; /* address of shared memory */
    float *factors, *scales;
    int *slots, *places; /* of the tile's tokens */
    int heads, tile_heads, tokens, head, first, used;
    /* heads of the call, of the tile; tokens of a full tile; the first head and token; tokens in use */

    __device__ __forceinline__ uint32_t full(int stage) const {
        return base + LATENT_BARRIERS + 8 * stage;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const {
        return base + LATENT_BARRIERS + 16 + 8 * stage;
    }
    __device__ __forceinline__ uint32_t weights_full(void) const {
        return base + LATENT_BARRIERS + 32;
    }
    __device__ __forceinline__ uint32_t weights_empty(void) const {
        return base + LATENT_BARRIERS + 40;
    }
    __device__ __forceinline__ uint32_t stage_at(int stage) const {
        return base + LATENT_RING + stage * LATENT_STEP;
    }
};

/* A step of the ring: which stage, and the parity of its barriers. */
struct latent_step {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next(void) {
        stage ^= 1;
        phase ^= stage == 0;
    }
};

/* --- queries */

/* Loads the tile's queries as 16-bit numbers scaled by a power of two, and the scales of their scores, by warps 0 to 7. Rows
 * without a query become 0. */
template <bool HALF> static __device__ __forceinline__ void load_queries(const latent_group &g, const gpu_view &q) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = warp; r < LATENT_ROWS; r += 8) {
        const int t = r / g.tile_heads, head = g.head + r % g.tile_heads, is = t < g.used && head < g.heads;
        const float4 *from =
            (const float4 *)(q.data + (uint64_t)(g.first + (is ? t : 0)) * q.stride) + (is ? head : 0) * (LATENT_D / 4);
        const float up = bring_query<HALF>(from, is, g.base + LATENT_QUERIES, r, LATENT_ROWS);
        if (lane == 0)
            g.scales[r] = g.x.scale * LOG2_E * up;
    }
}

/* --- cached rows */

/* Fetches all steps of one stage's turn by two warps: lane i of 64 has pieces i % 8, + 8, + 16 ... of rows i / 8, + 8 ... */
template <int FORMAT>
static __device__ __forceinline__ void fetch_step(const latent_group &g, const latent_keys &keys, int key, uint32_t to,
                                                  int *bad) {
    constexpr int EACH = LATENT_KEYS / 8, PIECES = LATENT_D / 64, BATCH = 3;
    const int i = threadIdx.x % 64, piece = i % 8, row = i / 8;
    const uint8_t *at[EACH];
    uint32_t seen = 0; /* a bit for each of the lane's rows */
#pragma unroll
    for (int m = 0; m < EACH; m++) {
        const int n = key + row + 8 * m;
        int pos = n, is = n >= keys.from && n < keys.to, block = 0;
        if (keys.list && is)
            pos = keys.list[n];
        if (is && (pos < 0 || pos >> g.x.shift >= g.x.width))
            *bad = 1, is = 0;
        if (is)
            block = good_block(g.x, keys.blocks[pos >> g.x.shift], bad);
        else
            pos = 0;
        seen |= (uint32_t)is << m;
        at[m] = g.x.k + (uint64_t)block * g.x.k_stride + (pos & (g.x.block - 1)) * cache_row<FORMAT>::bytes(LATENT_D);
    }
    to += row * 128 + ((piece ^ row) << 4);
#pragma unroll
    for (int m = 0; m < EACH; m++) {
        const int is = seen >> m & 1;
        if constexpr (cache_row<FORMAT>::PLAIN) {
#pragma unroll
            for (int k = 0; k < PIECES; k++)
                copy_16(to + m * 1024 + k * LATENT_TILE, at[m] + 16 * piece + 128 * k, is);
        } else {
#pragma unroll
            for (int first = 0; first < PIECES; first += BATCH) {
                uint4 x[BATCH];
#pragma unroll
                for (int k = 0; k < BATCH; k++) /* of any row, since branches would wait for each load */
                    x[k] = cache_eight<FORMAT>(at[m], piece + 8 * (first + k));
#pragma unroll
                for (int k = 0; k < BATCH; k++)
                    store_16(to + m * 1024 + (first + k) * LATENT_TILE, is ? x[k] : make_uint4(0, 0, 0, 0));
            }
        }
    }
    copies_close();
    copies_wait<0>();
    shared_to_async();
}

/* The fetching warps' part of a run: its steps in turn, every other one of them by each pair of warps. */
template <int FORMAT>
static __device__ __forceinline__ void fetch_run(const latent_group &g, const latent_keys &keys, latent_step &step,
                                                 int *bad) {
    const int own = threadIdx.x / 64 % 2;
    for (int key = keys.from / LATENT_KEYS * LATENT_KEYS; key < keys.to; key += LATENT_KEYS, step.next()) {
        if (step.stage != own)
            continue;
        barrier_wait(g.empty(own), step.phase ^ 1);
        fetch_step<FORMAT>(g, keys, key, g.stage_at(own), bad);
        barrier_arrive(g.full(own));
    }
}

/* --- products */

/* The value of lane 0, which all lanes have: so the compiler keeps what follows from it in uniform registers, where wgmma's
 * descriptors must be. */
static __device__ __forceinline__ int uniform(int x) {
    return __shfl_sync(0xFFFFFFFFu, x, 0);
}

/* Keeps the compiler from moving uses of registers that wgmma writes over what waits for it. */
template <int N> static __device__ __forceinline__ void settle(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

/* A lane's row of the tile: h is 0 or 1. */
static __device__ __forceinline__ int latent_row(int h) {
    return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * h;
}

/* Starts the scores of a step's 64 keys. */
template <bool HALF>
static __device__ __forceinline__ void start_scores(const latent_group &g, int stage, float (&s)[32]) {
    const uint32_t q = operand_low(g.base + LATENT_QUERIES, 16), k = operand_low(g.stage_at(stage), 16);
    products_open();
#pragma unroll
    for (int i = 0; i < LATENT_D / 16; i++) {
        const uint32_t at = (i / 4 * LATENT_TILE + i % 4 * 32) >> 4;
        HALF ? scores_f16_64(s, q + at, k + at, i) : scores_bf16_64(s, q + at, k + at, i);
    }
    products_close();
}

/* Softmax state of a lane's two rows. */
struct latent_state {
    float most[2], total[2], keep[2]; /* keep: factor of the sums so far */
    int to[2];                        /* the rows see keys below it */
};

/* Online softmax: turns the scores of 64 keys from `key` on into weights p. */
template <bool HALF>
static __device__ __forceinline__ void latent_softmax(latent_state &w, float (&s)[32], int key, int from,
                                                      const float *scales, uint32_t (&p)[4][4]) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float scale = scales[latent_row(h)];
        float most = w.most[h], sum = 0;
        if (key < from || key + LATENT_KEYS > w.to[h]) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = key + 8 * j + 2 * c + e;
                    if (at < from || at >= w.to[h])
                        s[4 * j + 2 * h + e] = -INFINITY;
                }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            most = fmaxf(most, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        const float base = most == -INFINITY ? 0 : most * scale;
        w.keep[h] = exp2f(fmaf(w.most[h], scale, -base));
        w.most[h] = most;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float x = exp2f(fmaf(s[4 * j + 2 * h + e], scale, -base));
                s[4 * j + 2 * h + e] = x;
                sum += x;
            }
        w.total[h] = w.total[h] * w.keep[h] + sum;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[i][e] = two_halves<HALF>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
}

/* Rescales the sums of a lane's rows. */
static __device__ __forceinline__ void rescale(float (&o)[128], float low, float high) {
    if (__any_sync(0xFFFFFFFFu, low != 1 || high != 1)) {
#pragma unroll
        for (int j = 0; j < 32; j++) {
            o[4 * j] *= low, o[4 * j + 1] *= low;
            o[4 * j + 2] *= high, o[4 * j + 3] *= high;
        }
    }
}

/* Leaves a step's weights and factors for both warpgroups, once warpgroup 1 has used those before. turn: the number of the step. */
static __device__ __forceinline__ void hand_over(const latent_group &g, const uint32_t (&p)[4][4],
                                                 const latent_state &w, uint32_t turn) {
    const int c = threadIdx.x % 4;
    barrier_wait(g.weights_empty(), (turn & 1) ^ 1);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = latent_row(h);
        const uint32_t at = g.base + LATENT_WEIGHTS + row * 128 + 4 * c;
#pragma unroll
        for (int j = 0; j < 8; j++)
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + ((j ^ (row & 7)) << 4)), "r"(p[j / 2][j % 2 * 2 + h])
                         : "memory");
        if (c == 0)
            g.factors[row] = w.keep[h];
    }
    shared_to_async();
    barrier_arrive(g.weights_full());
    asm volatile("bar.sync 2, 128;" ::: "memory"); /* warpgroup 0 reads all of its weights, too */
}

/* One lane arrives for its warp, whose lanes have all read what may be overwritten now. */
static __device__ __forceinline__ void arrive_for_warp(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* Starts adding a stage's weighted values to a half of the sums. */
template <bool HALF>
static __device__ __forceinline__ void start_sums(const latent_group &g, int stage, int half, float (&o)[128]) {
    const uint32_t p = operand_low(g.base + LATENT_WEIGHTS, 16),
                   v = operand_low(g.stage_at(stage) + half * (LATENT_V / 128 * LATENT_TILE), LATENT_TILE);
    settle(o);
    products_open();
#pragma unroll
    for (int i = 0; i < LATENT_KEYS / 16; i++)
        HALF ? weighted_f16_256(o, p + 2 * i, v + 128 * i, 1) : weighted_bf16_256(o, p + 2 * i, v + 128 * i, 1);
    products_close();
}

/* Warpgroup 0's part of a run. The last step stands apart from the loop: products under way across a branch would make the
 * compiler wait for them. */
template <bool HALF>
static __device__ __forceinline__ void weigh_run(const latent_group &g, const latent_keys &keys, latent_step &step,
                                                 uint32_t &turn, latent_state &w, float (&o)[128]) {
    int key = keys.from / LATENT_KEYS * LATENT_KEYS;
    uint32_t p[4][4];
    if (key >= keys.to)
        return;
    {
        float s[32];
        barrier_wait(g.full(step.stage), step.phase);
        start_scores<HALF>(g, step.stage, s);
        products_wait<0>();
        settle(s);
        latent_softmax<HALF>(w, s, key, keys.from, g.scales, p);
    }
    for (; key + LATENT_KEYS < keys.to; key += LATENT_KEYS) {
        const int stage = step.stage;
        float s[32];
        rescale(o, w.keep[0], w.keep[1]);
        hand_over(g, p, w, turn++);
        start_sums<HALF>(g, stage, 0, o);
        step.next();
        barrier_wait(g.full(step.stage), step.phase);
        start_scores<HALF>(g, step.stage, s);
        products_wait<1>();
        settle(o);
        arrive_for_warp(g.empty(stage));
        products_wait<0>();
        settle(s);
        latent_softmax<HALF>(w, s, key + LATENT_KEYS, keys.from, g.scales, p);
    }
    rescale(o, w.keep[0], w.keep[1]);
    hand_over(g, p, w, turn++);
    start_sums<HALF>(g, step.stage, 0, o);
    products_wait<0>();
    settle(o);
    arrive_for_warp(g.empty(step.stage));
    step.next();
}

/* Warpgroup 1's part of a run. */
template <bool HALF>
static __device__ __forceinline__ void add_run(const latent_group &g, const latent_keys &keys, latent_step &step,
                                               uint32_t &turn, float (&o)[128]) {
    for (int key = keys.from / LATENT_KEYS * LATENT_KEYS; key < keys.to; key += LATENT_KEYS, step.next(), turn++) {
        barrier_wait(g.weights_full(), turn & 1);
        rescale(o, g.factors[latent_row(0)], g.factors[latent_row(1)]);
        start_sums<HALF>(g, step.stage, 1, o);
        products_wait<0>();
        settle(o);
        arrive_for_warp(g.empty(step.stage));
        arrive_for_warp(g.weights_empty());
    }
}

/* --- a tile */

/* How a call is partitioned: tiles of whole runs, tokens cut into splits, or tokens with lists, or with dealt blocks, cut likewise. */
enum latent_kind { WHOLE, CUT, LISTED, DEALT };

/* What deal_blocks left for a token. */
static __device__ __forceinline__ latent_keys dealt_keys(const gpu_call &c, int token) {
    const int32_t *left = (const int32_t *)c.scratch;
    const int to = left[token], slot = to < 0 ? 0 : i32_at(&c.v[4], token);
    return {left + c.v[1].shape[0] + (int64_t)slot * c.v[6].shape[1], nullptr, 0, to};
}

/* Writes the two numbers of a head's softmax state behind its token's sums. most: in powers of two. */
static __device__ __forceinline__ void leave_state(const gpu_call &c, int token, int head, float most, float total) {
    const int heads = c.v[1].shape[1];
    float *y = (float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + heads * LATENT_V + head;
    y[0] = most / LOG2_E, y[heads] = total;
}

/* Writes half of the rows' results: the output, or what latent_join merges. Warpgroup 0 has written each row's largest score
 * and sum of weights where the factors were, and where the scales were. */
template <int KIND>
static __device__ __forceinline__ void leave_rows(const latent_group &g, const gpu_call &c, const float (&o)[128],
                                                  int half, int splits, int split, int used) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = latent_row(h), t = row / g.tile_heads, head = g.head + row % g.tile_heads;
        if (t >= g.used || head >= g.heads)
            continue;
        const float total = g.scales[row];
        float *y = (float *)(c.v[0].data + (uint64_t)(g.first + t) * c.v[0].stride) + head * LATENT_V, share = 1;
        if (used > 1) {
            y = latent_result(c, g.first + t, head, splits, split, KIND == DEALT ? dealt_bytes(&c) : 0);
            if (half == 0 && threadIdx.x % 4 == 0)
                y[LATENT_V] = g.factors[row], y[LATENT_V + 1] = total;
        } else if (KIND == DEALT) {
            if (half == 0 && threadIdx.x % 4 == 0)
                leave_state(c, g.first + t, head, g.factors[row], total);
        } else {
            share = total == 0 ? 0 : 1 / total;
        }
        y += half * (LATENT_V / 2) + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < 32; j++)
            *(float2 *)(y + 8 * j) = make_float2(o[4 * j + 2 * h] * share, o[4 * j + 2 * h + 1] * share);
    }
}

/* The group's tile and its place in shared memory. whole: tiles of several tokens. */
static __device__ __forceinline__ latent_group group_of(const gpu_call &c, char *memory, bool whole) {
    latent_group g;
    const int rows = rows_of(&c, &c.v[1]);
    g.x = caches_of(c, 0);
    g.heads = c.v[1].shape[1];
    g.tile_heads = g.heads < LATENT_ROWS ? g.heads : LATENT_ROWS;
    g.tokens = latent_tokens(g.heads, whole);
    const int tiles = latent_tiles(g.heads), all = (rows + g.tokens - 1) / g.tokens;
    const int tile = whole ? all - 1 - (int)blockIdx.x / tiles : (int)blockIdx.x / tiles; /* long ones first */
    g.head = (int)blockIdx.x % tiles * LATENT_ROWS;
    g.first = tile * g.tokens;
    g.used = tile < 0 ? 0 : rows - g.first < g.tokens ? rows - g.first : g.tokens;
    g.base = shared_address(memory);
    g.factors = (float *)(memory + LATENT_FACTORS);
    g.scales = (float *)(memory + LATENT_SCALES);
    g.slots = (int *)(memory + LATENT_PLACES);
    g.places = g.slots + LATENT_ROWS;
    return g;
}

/* Calls part(keys, first, end, turn) for the runs of the tile: tokens first .. end - 1 of it, and the keys of the last one. */
template <int KIND, class F>
static __device__ __forceinline__ void each_run(const latent_group &g, const latent_keys &own, int *bad, F part) {
    if constexpr (KIND != WHOLE)
        part(latent_keys{own.blocks, own.list, uniform(own.from), uniform(own.to)}, 0, 1);
    else
        for (int first = 0, end, used = uniform(g.used); first < used; first = uniform(end)) {
            const int slot = uniform(g.slots[first]), pos = uniform(g.places[first]);
            for (end = first + 1; end < used && g.slots[end] == slot && g.places[end] == pos + end - first;)
                end++;
            const int last = pos + end - first - 1;
            if (place_good(g.x, slot, pos) && place_good(g.x, slot, last))
                part(latent_keys{g.x.table + slot * g.x.table_stride, nullptr, 0, uniform(last + 1)}, first, end);
            else
                *bad = 1;
        }
}

/* Warpgroup 0's part of a tile: the weights, and the left half of the sums. */
template <bool HALF, int KIND>
static __device__ __forceinline__ void left_half(const latent_group &g, const gpu_call &c, const latent_keys &own,
                                                 int splits, int split, int used) {
    latent_state w = {{-INFINITY, -INFINITY}, {0, 0}, {1, 1}, {0, 0}};
    latent_step step;
    uint32_t turn = 0;
    int bad;
    float o[128], scaled[2];
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
    each_run<KIND>(g, own, &bad, [&](const latent_keys &keys, int first, int end) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int token = latent_row(h) / g.tile_heads;
            w.to[h] = token < first || token >= end ? 0 : keys.to - (end - 1 - token);
        }
        weigh_run<HALF>(g, keys, step, turn, w, o);
    });
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.total[h] += __shfl_xor_sync(0xFFFFFFFFu, w.total[h], 1);
        w.total[h] += __shfl_xor_sync(0xFFFFFFFFu, w.total[h], 2);
        scaled[h] = w.most[h] == -INFINITY ? -INFINITY : w.most[h] * g.scales[latent_row(h)];
    }
    barrier_wait(g.weights_empty(), (turn & 1) ^ 1); /* warpgroup 1 has read the last factors */
    __syncwarp();
    if (threadIdx.x % 4 == 0)
#pragma unroll
        for (int h = 0; h < 2; h++)
            g.factors[latent_row(h)] = scaled[h], g.scales[latent_row(h)] = w.total[h];
    asm volatile("bar.sync 1, 256;" ::: "memory");
    leave_rows<KIND>(g, c, o, 0, splits, split, used);
}

/* Warpgroup 1's part of a tile: the right half of the sums. */
template <bool HALF, int KIND>
static __device__ __forceinline__ void right_half(const latent_group &g, const gpu_call &c, const latent_keys &own,
                                                  int splits, int split, int used) {
    latent_step step;
    uint32_t turn = 0;
    int bad;
    float o[128];
#pragma unroll
    for (int i = 0; i < 128; i++)
        o[i] = 0;
    each_run<KIND>(g, own, &bad, [&](const latent_keys &keys, int, int) { add_run<HALF>(g, keys, step, turn, o); });
    asm volatile("bar.sync 1, 256;" ::: "memory");
    leave_rows<KIND>(g, c, o, 1, splits, split, used);
}

template <int FORMAT, int KIND> static __device__ __forceinline__ void latent_tile(const gpu_call &c) {
    constexpr bool HALF = cache_row<FORMAT>::HALF;
    extern __shared__ char shared[];
    char *memory = shared + ((1024 - (shared_address(shared) & 1023)) & 1023);
    const latent_group g = group_of(c, memory, KIND == WHOLE);
    const int splits = gridDim.y, split = blockIdx.y;
    int bad = 0, used = 1;
    if (g.used <= 0)
        return;
    latent_keys own = {nullptr, nullptr, 0, 0};
    if (KIND == DEALT) {
        own = dealt_keys(c, g.first);
        if (own.to < 0) /* deal_blocks has faulted the run */
            return;
        own = cut_keys(own, split, splits, &used);
        if (own.from >= own.to && split)
            return;
    } else if (KIND != WHOLE) {
        const int slot = i32_at(&c.v[4], g.first), pos = i32_at(&c.v[5], g.first);
        if (!place_good(g.x, slot, pos)) {
            fault(&c);
            return;
        }
        own = cut_keys(keys_of_token<KIND == LISTED>(c, g.x, g.first, slot, pos), split, splits, &used);
        if (own.from >= own.to && split)
            return;
    } else if ((int)threadIdx.x < g.used) {
        g.slots[threadIdx.x] = i32_at(&c.v[4], g.first + threadIdx.x);
        g.places[threadIdx.x] = i32_at(&c.v[5], g.first + threadIdx.x);
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++)
            barrier_init(g.full(i), 64), barrier_init(g.empty(i), 8);
        barrier_init(g.weights_full(), 128), barrier_init(g.weights_empty(), 4);
        barriers_made();
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        latent_step step;
        registers_give<latent_registers<FORMAT>::FETCHING>();
        each_run<KIND>(g, own, &bad,
                       [&](const latent_keys &keys, int, int) { fetch_run<FORMAT>(g, keys, step, &bad); });
        if (bad)
            fault(&c);
        return;
    }
    registers_take<latent_registers<FORMAT>::MULTIPLYING>();
    load_queries<HALF>(g, c.v[1]);
    shared_to_async();
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (threadIdx.x < 128)
        left_half<HALF, KIND>(g, c, own, splits, split, used);
    else
        right_half<HALF, KIND>(g, c, own, splits, split, used);
}

/* --- dealt blocks */

/* Whether this rank of a group has a block: block b of the pool is block b / ranks of the cache of rank b % ranks. */
static __device__ __forceinline__ bool owns(const arg_attention_parts *a, int number) {
    return number >= 0 && number % a->ranks == a->rank;
}

/* Counts the positions up to a token's own that this rank has the blocks of, by all threads of a group. */
static __device__ __forceinline__ void count_token(const gpu_call &c, const caches &x, int token) {
    const arg_attention_parts *a = (const arg_attention_parts *)c.arg;
    const int slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    int32_t *left = (int32_t *)c.scratch + token;
    int count = 0, wrong = !place_good(x, slot, pos);
    const int32_t *table = x.table + (wrong ? 0 : slot) * x.table_stride;
    const int last = wrong ? -1 : pos >> x.shift;
#pragma unroll 4
    for (int i = threadIdx.x; i <= last; i += DEAL_THREADS) {
        const int number = table[i];
        wrong |= number < 0 || (owns(a, number) && number / a->ranks >= x.blocks);
        count += owns(a, number) ? i == last ? (pos & (x.block - 1)) + 1 : x.block : 0;
    }
    wrong = __syncthreads_or(wrong);
    __shared__ int all;
    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    if (count)
        atomicAdd_block(&all, count);
    __syncthreads();
    if (threadIdx.x)
        return;
    *left = wrong ? -1 : all;
    if (wrong)
        fault(&c);
}

/* Lists a slot's blocks that this rank has, in order, by all threads of a group: a warp counts the own ones among consecutive
 * entries of the table, then writes them behind those of the warps before. What is in entries that are not in use is never read. */
static __device__ __forceinline__ void list_slot(const gpu_call &c, const caches &x, int slot) {
    __shared__ int counts[DEAL_THREADS / 32];
    const arg_attention_parts *a = (const arg_attention_parts *)c.arg;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = (x.width + DEAL_THREADS - 1) / DEAL_THREADS * 32;
    const int begin = warp * each, end = min(begin + each, x.width);
    const int32_t *table = x.table + slot * x.table_stride;
    int32_t *row = (int32_t *)c.scratch + c.v[1].shape[0] + (int64_t)slot * x.width;
    int count = 0;
#pragma unroll 4
    for (int i = begin + lane; i - lane < end; i += 32)
        count += __popc(__ballot_sync(0xFFFFFFFFu, i < end && owns(a, table[i])));
    if (lane == 0)
        counts[warp] = count;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; w++)
        before += counts[w];
    for (int i = begin + lane; i - lane < end; i += 32) {
        const bool own = i < end && owns(a, table[i]);
        const uint32_t mine = __ballot_sync(0xFFFFFFFFu, own);
        if (own)
            row[before + __popc(mine & ((1u << lane) - 1))] = table[i] / a->ranks;
        before += __popc(mine);
    }
}

/* Grid: tokens, then slots. */
extern "C" __global__ void __launch_bounds__(DEAL_THREADS) deal_blocks(const __grid_constant__ gpu_call c) {
    AWAIT_BEFORE();
    const caches x = caches_of(c, 0);
    const int group = blockIdx.x, most = c.v[1].shape[0];
    if (group >= most)
        list_slot(c, x, group - most);
    else if (group < rows_of(&c, &c.v[1]))
        count_token(c, x, group);
}

/* Joins the splits of a head of a token: a quarter of its columns. Grid: four times the heads by tokens. */
extern "C" __global__ void __launch_bounds__(LATENT_JOINERS) attention_dealt_join(const __grid_constant__ gpu_call c) {
    AWAIT_BEFORE();
    const int head = blockIdx.x / 4, token = blockIdx.y, column = blockIdx.x % 4 * 128 + threadIdx.x % 32 * 4;
    const int splits = latent_splits(c.v[1].shape[0], c.v[1].shape[1], c.config);
    int used;
    if (token >= rows_of(&c, &c.v[1]))
        return;
    const latent_keys all = dealt_keys(c, token);
    if (all.to < 0)
        return;
    cut_keys(all, 0, splits, &used);
    if (used < 2)
        return;
    latent_joined found;
    if (!join_splits(latent_result(c, token, head, splits, 0, dealt_bytes(&c)), used, column, &found))
        return;
    *(float4 *)((float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + head * LATENT_V + column) = found.sum;
    if (column == 0)
        leave_state(c, token, head, found.most, found.total);
}

#define LATENT(name, FORMAT, KIND)                                                                                     \
    extern "C" __global__ void __launch_bounds__(LATENT_THREADS, 1) name(const __grid_constant__ gpu_call c) {         \
        AWAIT_BEFORE();                                                                                                \
        latent_tile<FORMAT, KIND>(c);                                                                                  \
    }
#define LATENTS(format, FORMAT)                                                                                        \
    LATENT(attention_latent_##format, FORMAT, WHOLE)                                                                   \
    LATENT(attention_cut_##format, FORMAT, CUT)                                                                        \
    LATENT(attention_listed_##format, FORMAT, LISTED)                                                                  \
    LATENT(attention_dealt_##format, FORMAT, DEALT)                                                                    \
    JOIN(attention_cut_join_##format, false)                                                                           \
    JOIN(attention_listed_join_##format, true)
/* Grids: tiles by splits; four times the heads by tokens. */
LATENTS(f16, CACHE_F16)
LATENTS(bf16, CACHE_BF16)
LATENTS(fp8, CACHE_FP8)
LATENTS(q8_0, CACHE_Q8_0)
LATENTS(q4_0, CACHE_Q4_0)
