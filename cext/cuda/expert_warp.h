/* expert_warp.h: layout of expert_warp.cu's shared memory, shared by host and kernels.
 *
 * A group has eight warps, or four where the memory of eight does not fit. Each has two tiles of 16 rows.
 */
#ifndef SATCHEL_CUDA_EXPERT_WARP_H
#define SATCHEL_CUDA_EXPERT_WARP_H

#include "expert_tiles.h"

enum {
    EXPERT_WARPS_FEW = 4,
    EXPERT_WARP_STEPS = 4, /* of activations, 64 elements each, in the ring, at most */
    EXPERT_WARP_CHUNKS = 3 /* of weights in the ring, at most */
};
#ifndef EXPERT_WARP_WIDE
#define EXPERT_WARP_WIDE 64 /* pairs of a tile of prompts; of batches EXPERT_NARROW */
#endif

/* Offsets in shared memory; activations lie at 0. weight, column: bytes of one stage. */
typedef struct {
    int weight_stages, column_stages, weight, column, weights, tables, bytes;
} expert_warp_room;

/* Of groups of `warps` warps, tiles of `most` pairs and at most `limit` bytes: two stages of either ring at least, a third one of
 * weights where four of activations fit beside it. The same with the result's own bytes as the limit. More bytes than `limit`: it
 * does not fit. */
BOTH expert_warp_room expert_warp_room_of(int most, int warps, int chunk_bytes, int limit) {
    expert_warp_room r;
    int fixed = 2 * warps * COLUMNS_TABLE;
    r.weight = 2 * warps * chunk_bytes;
    r.column = most * COLUMNS_K * 2;
    r.weight_stages = EXPERT_WARP_CHUNKS;
    if (fixed + r.weight_stages * r.weight + EXPERT_WARP_STEPS * r.column > limit)
        r.weight_stages = 2;
    r.column_stages = (limit - fixed - r.weight_stages * r.weight) / r.column;
    r.column_stages = r.column_stages < 2                   ? 2
                      : r.column_stages < EXPERT_WARP_STEPS ? r.column_stages
                                                            : EXPERT_WARP_STEPS;
    r.weights = r.column_stages * r.column;
    r.tables = r.weights + r.weight_stages * r.weight;
    r.bytes = r.tables + fixed;
    return r;
}

/* Warps of a group; 0: there is no room. */
BOTH int expert_warps_of(int most, int chunk_bytes, int limit) {
    if (expert_warp_room_of(most, EXPERT_WARPS, chunk_bytes, limit).bytes <= limit)
        return EXPERT_WARPS;
    return expert_warp_room_of(most, EXPERT_WARPS_FEW, chunk_bytes, limit).bytes <= limit ? EXPERT_WARPS_FEW : 0;
}

#endif
