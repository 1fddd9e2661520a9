/* attention_shape.h: how attention's work is cut, as the kernels and their table agree on it.
 *
 * Tokens are dealt in tiles of 128. A tile whose runs (tokens of one slot whose positions follow each other) are shorter than
 * SHORT_RUN on average belongs to attention_split; attention_wide, which sees that, notes it in scratch, where an int32 for
 * each tile comes before the results of splits. A call of at most FEW tokens is attention_split's alone.
 */
#ifndef SATCHEL_CUDA_ATTENTION_SHAPE_H
#define SATCHEL_CUDA_ATTENTION_SHAPE_H

#include "call.h"

enum { TOKENS = 128, KEYS = 64, SHORT_RUN = 8, FEW = 16, MOST_GROUPS = 1024 };
enum { WALKERS = 128 /* groups that share the tokens of a longer call */, FEW_SPLITS = 4, LEAST_SPLIT = 256 /* positions, where there is work enough */ };
enum { WARPS = 4, SPAN = 16 /* keys of a warp's step */, STRIDE = WARPS * SPAN, IDS = 512 /* blocks at hand, a power of two */ };

#ifdef __CUDACC__
#define SHAPE_FN static __host__ __device__ __forceinline__
#else
#define SHAPE_FN static inline
#endif

/* Bytes of shared memory of attention_wide: queries, two steps of keys and values, scales, slots, positions, runs, blocks. */
SHAPE_FN int wide_shared(int d) {
    return (TOKENS + 4 * KEYS) * d * 2 + TOKENS * 12 + 64 + IDS * 4 + 1024;
}

/* Of attention_split: the warps' rings, then their results in the same place. */
SHAPE_FN int split_shared(int d, int group) {
    int ring = WARPS * (d == 64 ? 4 : 3) * d * 64, results = (WARPS * group * (d + 2) + 2 * group) * 4;
    return ring > results ? ring : results;
}

/* The most splits of a token: what keeps the device busy with all tokens of the call. */
SHAPE_FN int most_splits(const gpu_call *c) {
    int64_t work = (int64_t)c->v[1].shape[0] * c->v[2].shape[1];
    int n = 32;
    if (c->config)
        return (int)c->config;
    while (n > 1 && n * work > MOST_GROUPS)
        n /= 2;
    return n;
}

SHAPE_FN int tiles_of(const gpu_call *c) {
    return (c->v[1].shape[0] + TOKENS - 1) / TOKENS;
}

SHAPE_FN uint64_t attention_scratch(const gpu_call *c) {
    return 4 * (uint64_t)tiles_of(c) + 64 +
           4 * (uint64_t)c->v[1].shape[0] * c->v[1].shape[1] * most_splits(c) * (c->v[1].shape[2] + 2);
}

#endif
