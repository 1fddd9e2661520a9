/* latent_shape.h: partition of latent attention's work (attention_latent.cu), shared by the kernels and their table.
 *
 * A tile is 64 rows, each a query head of a token, of one or several tokens. In a call of few tokens each has tiles of its own
 * and its past is cut into splits; in a longer call a tile holds all heads of 64 / heads tokens, and nothing is cut.
 */
#ifndef SATCHEL_CUDA_LATENT_SHAPE_H
#define SATCHEL_CUDA_LATENT_SHAPE_H

#include "call.h"

#ifdef __CUDACC__
#define LATENT_FN static __host__ __device__ __forceinline__
#else
#define LATENT_FN static inline
#endif

enum {
    LATENT_D = 576 /* elements of a query and of a cached row: the latent, then the part with RoPE */,
    LATENT_V = 512 /* of the latent, which is the value */,
    LATENT_ROWS = 64,
    LATENT_KEYS = 64 /* positions of a step */,
    LATENT_FEW = 128 /* tokens of a call whose pasts are cut */,
    LATENT_GROUPS = 132 /* splits are at most so many for each group that a device runs at a time */,
    LATENT_SPLITS = 128,
    LATENT_THREADS = 384,
    LATENT_JOINERS = 128 /* threads, each of which joins four columns of a quarter of the splits */
};

/* Bytes of shared memory: queries, two steps of cached rows, weights of a step, factors and scales of rows, barriers. */
enum {
    LATENT_TILE = 64 * 128 /* 64 rows of 64 elements */,
    LATENT_STEP = LATENT_D / 64 * LATENT_TILE,
    LATENT_QUERIES = 0,
    LATENT_RING = LATENT_STEP,
    LATENT_WEIGHTS = 3 * LATENT_STEP,
    LATENT_FACTORS = LATENT_WEIGHTS + LATENT_TILE,
    LATENT_SCALES = LATENT_FACTORS + LATENT_ROWS * 4,
    LATENT_PLACES = LATENT_SCALES + LATENT_ROWS * 4 /* slot and position of the tile's tokens */,
    LATENT_BARRIERS = LATENT_PLACES + 2 * LATENT_ROWS * 4,
    LATENT_SHARED = LATENT_BARRIERS + 64 + 1024 /* to begin at a multiple of 1024 */
};

/* Of latent_warp.cu: rows of a tile, all of one token, positions of a step, and of shared memory the stages, then the parts of a step's scores,
 * then the rows' scales. */
enum {
    LATENT_WARP_ROWS = 16,
    LATENT_WARP_KEYS = 32,
    LATENT_WARP_THREADS = 256,
    LATENT_WARP_STAGE = LATENT_WARP_KEYS * LATENT_D * 2,
    LATENT_WARP_PITCH = LATENT_WARP_KEYS + 8 /* floats of a row of scores */,
    LATENT_WARP_PARTS = 4,
    LATENT_WARP_SCORES = 2 * LATENT_WARP_STAGE,
    LATENT_WARP_SCALES = LATENT_WARP_SCORES + LATENT_WARP_PARTS * LATENT_WARP_ROWS * LATENT_WARP_PITCH * 4,
    LATENT_WARP_SHARED = LATENT_WARP_SCALES + LATENT_WARP_ROWS * 4
};

/* Tiles of a token. */
LATENT_FN int latent_tiles(int heads) {
    return (heads + LATENT_ROWS - 1) / LATENT_ROWS;
}

/* Tokens of a tile; `whole`: the call's tokens are not cut apart (it is long, and not sparse). */
LATENT_FN int latent_tokens(int heads, int whole) {
    return whole && heads < LATENT_ROWS ? LATENT_ROWS / heads : 1;
}

/* Most splits of a token's past, a power of two; tokens: of the call. */
LATENT_FN int latent_splits(int tokens, int heads, uint32_t config) {
    int n = LATENT_SPLITS;
    if (config)
        return (int)config;
    while (n > 1 && n * tokens * latent_tiles(heads) > LATENT_GROUPS)
        n /= 2;
    return n;
}

/* Floats of a split's result: the weighted sum of values, the largest score in powers of two, the sum of weights. */
enum { LATENT_RESULT = LATENT_V + 4 };

/* Of attention_parts, whose keys are the blocks that this rank of a group has: int32 of scratch that deal_blocks leaves. For each
 * token, how many of its positions these blocks hold (-1: its place is wrong), then for each slot these blocks, in order. Behind
 * them, at a multiple of 16 bytes, come the splits' results. */
LATENT_FN uint64_t dealt_bytes(const gpu_call *c) {
    return (4 * ((uint64_t)c->v[1].shape[0] + (uint64_t)c->v[6].shape[0] * (uint64_t)c->v[6].shape[1]) + 15) / 16 * 16;
}

enum { DEAL_THREADS = 512 };

LATENT_FN uint64_t latent_scratch(const gpu_call *c, int whole) {
    const int tokens = c->v[1].shape[0], heads = c->v[1].shape[1];
    const int splits = whole ? 1 : latent_splits(tokens, heads, c->config);
    return splits == 1 ? 0 : 4ull * LATENT_RESULT * (uint64_t)tokens * (uint64_t)heads * (uint64_t)splits;
}

#endif
