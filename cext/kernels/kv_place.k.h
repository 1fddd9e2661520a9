/* kv_place.k.h: where a token's keys and values lie in the paged cache (blocks, H, block, D). slots: the views of slot, pos and table. */
#ifndef SATCHEL_KV_PLACE_K_H
#define SATCHEL_KV_PLACE_K_H

#include "kv_rows.k.h"

/* Block table[slot[t]][pos[t] / block] of token t; -1 if an index is out of range. */
FN int kv_block_of(CONSTANT gpu_view *cache, CONSTANT gpu_view *slots, int t) {
    CONSTANT gpu_view *table = slots + 2;
    int slot = i32_at(slots, t), pos = i32_at(slots + 1, t), size = cache->shape[2];
    return inside(slot, table->shape[0]) && pos >= 0 && pos / size < table->shape[1]
               ? ROW(const int32_t, table, slot)[pos / size]
               : -1;
}

/* Address of head `head` of token t in a block of the cache; NULL if there is no such block. */
FN DEVICE char *kv_in_block(CONSTANT gpu_view *cache, CONSTANT gpu_view *slots, int t, int head, int block) {
    int pos = i32_at(slots + 1, t), size = cache->shape[2];
    if (!inside(block, cache->shape[0]))
        return NULL;
    return ROW(char, cache, block) + kv_bytes(cache->format, cache->shape[3]) * ((int64_t)head * size + pos % size);
}

/* Address of head `head` of token t in its block; NULL if an index is out of range. */
FN DEVICE char *kv_place(CONSTANT gpu_view *cache, CONSTANT gpu_view *slots, int t, int head) {
    return kv_in_block(cache, slots, t, head, kv_block_of(cache, slots, t));
}

#endif
