/* expert_warp.h: layout of the shared memory of expert_warp.cu and expert_scaled.cu, and of the latter's scratch, shared by host and
 * kernels.
 *
 * A group has four warps, or eight where a second group does not fit beside it. Each has two tiles of 16 rows.
 */
#ifndef SATCHEL_CUDA_EXPERT_WARP_H
#define SATCHEL_CUDA_EXPERT_WARP_H

#include "expert_tiles.h"

enum {
    EXPERT_WARPS_FEW = 4,
    EXPERT_WARP_STEPS = 4,  /* of activations, 128 bytes of a column each, in the ring, at most */
    EXPERT_WARP_CHUNKS = 3, /* of weights in the ring, at most */
    SCALED_K = 128          /* elements of a step of expert_scaled.cu */
};
#ifndef EXPERT_WARP_WIDE
#define EXPERT_WARP_WIDE 64 /* pairs of a tile of prompts; of batches EXPERT_NARROW */
#endif

/* Offsets in shared memory; activations lie at 0. weight, column: bytes of one stage. */
typedef struct {
    int weight_stages, column_stages, weight, column, weights, tables, bytes;
} expert_warp_room;

/* Of groups of `warps` warps, tiles of `most` pairs and at most `limit` bytes: two stages of either ring at least, a third one of
 * weights where four of activations fit beside it. scaled: of expert_scaled.cu, whose columns have a byte of scale for 32 elements, and
 * which has no tables. The same with the result's own bytes as the limit. More bytes than `limit`: it does not fit. */
BOTH expert_warp_room expert_warp_room_of(int most, int scaled, int warps, int chunk_bytes, int limit) {
    expert_warp_room r;
    int fixed = scaled ? 0 : 2 * warps * COLUMNS_TABLE, steps;
    r.weight = 2 * warps * chunk_bytes;
    r.column = most * (scaled ? SCALED_K + SCALED_K / 32 : COLUMNS_K * 2);
    r.weight_stages = EXPERT_WARP_CHUNKS;
    if (fixed + r.weight_stages * r.weight + EXPERT_WARP_STEPS * r.column > limit)
        r.weight_stages = 2;
    /* A step waits for all copies but those for the next column_stages - 2, so weights that come a chunk ahead must be older. */
    steps = scaled && r.weight_stages == 2 ? CHUNK / SCALED_K + 1 : EXPERT_WARP_STEPS;
    r.column_stages = (limit - fixed - r.weight_stages * r.weight) / r.column;
    r.column_stages = r.column_stages < 2 ? 2 : r.column_stages < steps ? r.column_stages : steps;
    r.weights = r.column_stages * r.column;
    r.tables = r.weights + r.weight_stages * r.weight;
    r.bytes = r.tables + fixed;
    return r;
}

/* Groups of a multiprocessor and their warps. warps 0: there is no room. bytes: of a group. */
typedef struct {
    int warps, groups, bytes;
} expert_warp_shape;

/* With at most `limit` bytes for a group, and hardly more on a multiprocessor: several groups of four warps, which wait each at its own
 * barriers, are a quarter faster than one of eight, and that is a third faster than one of four. Registers allow three groups with narrow
 * tiles, else two. */
BOTH expert_warp_shape expert_warp_shape_of(int most, int scaled, int chunk_bytes, int limit) {
    expert_warp_shape s;
    for (s.groups = most > EXPERT_NARROW ? 2 : 3; s.groups; s.groups--) {
        int each = s.groups > 1 ? (limit + 1024) / s.groups - 1024 : limit; /* the driver takes a KB of each */
        s.warps = EXPERT_WARPS_FEW;
        if (s.groups == 1 && expert_warp_room_of(most, scaled, EXPERT_WARPS, chunk_bytes, each).bytes <= each)
            s.warps = EXPERT_WARPS;
        s.bytes = expert_warp_room_of(most, scaled, s.warps, chunk_bytes, each).bytes;
        if (s.bytes <= each)
            return s;
    }
    s.warps = 0;
    return s;
}

/* Scratch of expert_scaled.cu: that of expert_tiles.h, but rows are a byte an element, and a byte of scale for 32 elements follows. */
BOTH expert_scratch scaled_scratch_of(const gpu_call *c, int most) {
    expert_scratch s = expert_scratch_of(c, most);
    uint64_t codes = (s.bytes - s.rows) / 2;
    s.scales = s.rows + codes;
    s.bytes = s.scales + codes / 32;
    return s;
}

#endif
