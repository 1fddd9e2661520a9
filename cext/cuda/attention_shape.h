/* attention_shape.h: partition of attention's work, shared by the kernels and their table.
 *
 * Tokens are grouped in tiles of 128. A tile whose runs (tokens of one slot at consecutive positions) are shorter than
 * SHORT_RUN on average is computed by attention_split, any other by attention_wide. attention_wide decides and records it in
 * scratch, an int32 per tile before the results of splits. A call of at most FEW tokens uses attention_split alone.
 */
#ifndef SATCHEL_CUDA_ATTENTION_SHAPE_H
#define SATCHEL_CUDA_ATTENTION_SHAPE_H

#include "call.h"
#include "family.h"

enum { TOKENS = 128, KEYS = 64, SHORT_RUN = 8, FEW = 16, MOST_GROUPS = 1024 };
enum {
    WALKERS = 128 /* groups of a longer call */,
    FEW_SPLITS = 8,
    LEAST_SPLIT = 256,        /* positions of a split, at least, of calls with up to FEW_SPLITS */
    JOIN_COUNTERS = FEW * 128 /* tokens times parts of heads whose splits the last group joins, at most */
};
enum {
    WARPS = 4,
    SPAN = 16 /* keys of a warp's step */,
    STRIDE = WARPS * SPAN,
    IDS = 512 /* cached block indices, 2^n */,
    MOST_COLUMNS = 256 /* of a head, per warp or warpgroup */,
    ADD_BYTES = WARPS * 2 * 512 /* two steps' scores of each warp */,
    RESULT_HEAD =
        4 /* numbers before a result's sums: its largest score, the sum of its weights, and two that are unused */,
    SPLIT_STATIC = 1024 /* bytes of shared memory besides that of the launch, at most */
};

/* Of attention_fixed: positions of a split, splits at most that groups of their own take, counters of tokens and KV heads. */
enum { FIXED_SPLIT = 512, FIXED_SPLITS = 256, FIXED_COUNTERS = 256, FIXED_ROWS = 64 /* heads of a KV head */ };

#ifdef __CUDACC__
#define SHAPE_FN static constexpr __host__ __device__ __forceinline__
#else
#define SHAPE_FN static inline
#endif

/* Parts into which attention_wide cuts the columns of heads of up to d, at least: its two warpgroups share the keys of a step then. */
SHAPE_FN int column_parts(int d) {
    return d > MOST_COLUMNS ? d / MOST_COLUMNS : 1;
}

/* Of attention_split, likewise, and of a warp's ring there and in attention_heads the stages. Other devices than Hopper have 99 KB of
 * shared memory for a group, or 163. */
SHAPE_FN int split_parts(int d, int hopper) {
    int most = hopper ? MOST_COLUMNS : MOST_COLUMNS / 2;
    return d > most ? d / most : 1;
}

SHAPE_FN int ring_stages(int d, int hopper) {
    return d == 64 ? 4 : hopper ? 3 : 2;
}

/* Keys of a step of attention_wide, for heads of up to d. */
SHAPE_FN int wide_keys(int d, int hopper) {
    return hopper || d == 64 ? KEYS : KEYS / 2;
}

/* Bytes of shared memory of attention_wide for heads of up to d in `parts` parts of columns: queries, two steps of keys and values, sums
 * of scores where columns are cut, scales, slots, positions, runs, blocks. */
SHAPE_FN int wide_shared(int d, int parts, int hopper) {
    int keys = wide_keys(d, hopper) / parts, sums = parts > 1 ? TOKENS * keys * 4 : 0;
    return (TOKENS / parts + 4 * keys) * d * 2 + sums + TOKENS * 12 + 64 + IDS * 4 + 1024;
}

/* Of attention_split, for `group` query heads at a time: the warps' rings and where they add scores, then their results in the
 * same place. */
SHAPE_FN int split_shared(int d, int group, int hopper) {
    int parts = split_parts(d, hopper);
    int ring = WARPS * ring_stages(d, hopper) * (d / parts) * 64 + (parts > 1 ? ADD_BYTES : 0);
    int results = WARPS / parts * group * (d + RESULT_HEAD) * 4;
    return ring > results ? ring : results;
}

/* Maximum splits per token: enough to fill the device with the call's tokens. */
SHAPE_FN int most_splits(const gpu_call *c) {
    int64_t work = (int64_t)c->v[1].shape[0] * c->v[2].shape[1];
    int n = 32;
    if (c->config)
        return (int)c->config;
    while (n > 1 && n * work > MOST_GROUPS)
        n /= 2;
    return n;
}

#ifndef RUN_LEAST /* positions that a run sees times the tokens of the step, from which on a group takes a run; measured */
#define RUN_LEAST 12288
#endif
/* Tokens of one slot at consecutive positions, such as draft tokens, that a group of attention_split takes at once, so that they
 * read keys and values once: their heads share the 16 columns of a matrix tile. */
SHAPE_FN int run_tokens(int tokens, int group, int d) {
    return tokens <= FEW && group <= 8 && (d == 64 || d == 128) ? 16 / group : 1;
}

/* Whether the group that ends last of a token's splits joins them, of `parts` groups of heads; else a launch of its own does. No group has two
 * tokens then. */
SHAPE_FN int last_joins(int tokens, int64_t parts) {
    return tokens <= WALKERS && tokens * parts <= JOIN_COUNTERS;
}

SHAPE_FN int tiles_of(const gpu_call *c) {
    return (c->v[1].shape[0] + TOKENS - 1) / TOKENS;
}

/* Splits of the longest past in attention_fixed. */
SHAPE_FN int fixed_splits(const gpu_call *c) {
    int64_t splits = ((int64_t)c->v[6].shape[1] * c->v[2].shape[2] + FIXED_SPLIT - 1) / FIXED_SPLIT;
    return splits < FIXED_SPLITS ? (int)splits : FIXED_SPLITS;
}

/* Groups that share the splits of one token and KV head in attention_fixed; 1: a group takes them all, and scratch has none. */
SHAPE_FN int fixed_groups(const gpu_call *c) {
    int64_t work = (int64_t)c->v[1].shape[0] * c->v[2].shape[1], most = MOST_GROUPS / work, splits = fixed_splits(c);
    if (c->v[1].shape[0] > FEW || work > FIXED_COUNTERS)
        return 1;
    most = most > FIXED_SPLITS / 4 ? FIXED_SPLITS / 4 : most;
    return (int)(most < splits ? most : splits);
}

SHAPE_FN uint64_t fixed_scratch(const gpu_call *c) {
    return 4 * (uint64_t)tiles_of(c) + 64 +
           (fixed_groups(c) > 1
                ? 4 * (uint64_t)c->v[1].shape[0] * c->v[1].shape[1] * fixed_splits(c) * (c->v[1].shape[2] + 2)
                : 0);
}

/* Bytes of shared memory of attention_fixed's groups of few tokens: queries, two steps of keys and values, scales, blocks. */
SHAPE_FN int fixed_shared(int d) {
    return (FIXED_ROWS + 4 * KEYS) * d * 2 + FIXED_ROWS * 4 + IDS * 4 + 1024;
}

SHAPE_FN uint64_t attention_scratch(const gpu_call *c) {
    return 4 * (uint64_t)tiles_of(c) + 64 +
           4 * (uint64_t)c->v[1].shape[0] * c->v[1].shape[1] * most_splits(c) * (c->v[1].shape[2] + RESULT_HEAD);
}

#endif
