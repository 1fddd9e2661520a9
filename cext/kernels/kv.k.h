/* kv.k.h: writes keys or values to the paged cache (blocks, H, block, D), as they are or after RoPE. A group writes one head of
 * one token; a thread writes one unit of it (kv_rows.k.h). A token whose slot, position or block is out of range is not written
 * and faults the run.
 */
#ifndef SATCHEL_KV_K_H
#define SATCHEL_KV_K_H

#include "kv_rows.k.h"
#include "modes.h"
#include "rope.k.h"

/* Address of head `head` of token t in block table[slot[t]][pos[t] / block]; NULL if an index is out of range. */
FN DEVICE char *kv_place(CONSTANT gpu_view *cache, CONSTANT gpu_view *slots, int t, int head) {
    CONSTANT gpu_view *table = slots + 2;
    int slot = i32_at(slots, t), pos = i32_at(slots + 1, t), size = cache->shape[2], block = -1;
    if (inside(slot, table->shape[0]) && pos >= 0 && pos / size < table->shape[1])
        block = ROW(const int32_t, table, slot)[pos / size];
    if (!inside(block, cache->shape[0]))
        return NULL;
    return ROW(char, cache, block) + kv_bytes(cache->format, cache->shape[3]) * ((int64_t)head * size + pos % size);
}

KERNEL(kv_write, GROUP) {
    CONSTANT gpu_view *cache = c->v, *x = c->v + 2, *cos_sin = c->v + 3;
    int head = m.group[0], t = m.group[1], d = cache->shape[3], unit = kv_unit(cache->format);
    int style = c->mode == KV_ROPE ? ((CONSTANT arg_rope_kv_write *)c->arg)->style : 0;
    DEVICE const float *from;
    DEVICE char *to;
    if (t >= rows_of(c, x))
        return;
    from = ROW(const float, x, t) + (int64_t)head * d;
    to = kv_place(cache, c->mode == KV_ROPE ? c->v + 4 : c->v + 3, t, head);
    if (!to) {
        fault(c);
        return;
    }
    for (int i = m.thread; i < d / unit; i += m.threads) {
        float numbers[KV_BLOCK];
        for (int j = 0; j < unit; j++)
            numbers[j] = c->mode == KV_ROPE
                             ? rope_at(from, ROW(const float, cos_sin, t), cos_sin->shape[1], style, i * unit + j)
                             : from[i * unit + j];
        kv_store(cache->format, numbers, to, i);
    }
}

#endif
