/* kv.k.h: writes keys or values to the paged cache (blocks, H, block, D), as they are or after RoPE; or those of the blocks that
 * this rank of a group has (context parallelism). A group writes one head of one token; a thread writes one unit of it
 * (kv_rows.k.h). A token whose slot, position or block is out of range is not written and faults the run.
 */
#ifndef SATCHEL_KV_K_H
#define SATCHEL_KV_K_H

#include "kv_place.k.h"
#include "modes.h"
#include "rope.k.h"

/* Writes a head to the cache, after RoPE of its first n_rot elements (0: none). */
FN void kv_encode(self m, CONSTANT gpu_view *cache, DEVICE char *to, rope_head h, DEVICE const float *cos_sin,
                  int n_rot, int style) {
    int d = cache->shape[3], blocks = kv_in_blocks(cache->format);
    for (int i = m.thread; !blocks && i < d - n_rot / 2; i += m.threads) {
        rope_pair r = rope_rotate(h, cos_sin, n_rot, style, i);
        kv_store_one(cache->format, r.a, to, r.first);
        if (r.second >= 0)
            kv_store_one(cache->format, r.b, to, r.second);
    }
    for (int i = m.thread; blocks && i < d / KV_BLOCK; i += m.threads) {
        float numbers[KV_BLOCK];
        for (int j = 0; j < KV_BLOCK; j++)
            numbers[j] = rope_of(h, cos_sin, n_rot, style, i * KV_BLOCK + j);
        kv_store_block(cache->format, numbers, to, i);
    }
}

KERNEL(kv_write, GROUP) {
    CONSTANT gpu_view *cache = c->v, *x = c->v + 2, *cos_sin = c->v + 3;
    int head = m.group[0], t = m.group[1], rotated = c->mode == KV_ROPE;
    int style = rotated ? ((CONSTANT arg_rope_kv_write *)c->arg)->style : 0, block;
    CONSTANT gpu_view *slots = rotated ? c->v + 4 : c->v + 3;
    DEVICE char *to;
    if (t >= rows_of(c, x))
        return;
    block = kv_block_of(cache, slots, t);
    if (c->mode == KV_PART && block >= 0) {
        CONSTANT arg_kv_write_part *a = (CONSTANT arg_kv_write_part *)c->arg;
        if (block % a->ranks != a->rank)
            return;
        block /= a->ranks;
    }
    to = kv_in_block(cache, slots, t, head, block);
    if (!to) {
        fault(c);
        return;
    }
    kv_encode(m, cache, to, plain_head(ROW(const float, x, t) + (int64_t)head * cache->shape[3]),
              rotated ? ROW(const float, cos_sin, t) : NULL, rotated ? cos_sin->shape[1] : 0, style);
}

/* A head of a token's queries (part 0), keys (1) or values (2), with its bias or its norm: of the ops whose inputs are those of
 * rope_qkv_write. Computed by a wave, whose lanes all get it. */
FN rope_head qkv_head(CONSTANT gpu_call *c, self m, int part, int t, int head, int biases, int norms, float eps) {
    CONSTANT gpu_view *x = part == 0 ? c->v + 1 : c->v + 7 + part;
    int d = x->shape[2];
    rope_head h = plain_head(ROW(const float, x, t) + (int64_t)head * d);
    if (biases)
        h.bias = ROW(const float, c->v + 10 + part, 0) + (int64_t)head * d;
    if (norms && part < 2) {
        float sum = 0;
        for (int i = m.lane; i < d; i += WAVE)
            sum += h.x[i] * h.x[i];
        h.norm = ROW(const float, c->v + 10 + part, 0);
        h.size = sqrtf(wave_sum(m, sum) / (float)d + eps);
    }
    return h;
}

/* RoPE of queries, and of keys on their way to the cache, beside the values. A wave computes one head of one token: the queries'
 * heads come first, then those of keys and of values. */
KERNEL(rope_qkv_write, GROUP) {
    CONSTANT arg_rope_qkv_write *a = (CONSTANT arg_rope_qkv_write *)c->arg;
    CONSTANT gpu_view *cos_sin = c->v + 7;
    int heads = c->v[1].shape[1], kv = c->v[8].shape[1], t = m.group[1], head = m.group[0] * m.waves + m.wave;
    int n_rot = cos_sin->shape[1], part = head < heads ? 0 : head < heads + kv ? 1 : 2; /* queries, keys, values */
    rope_head h;
    DEVICE char *to;
    if (t >= rows_of(c, c->v + 1) || head >= heads + 2 * kv)
        return;
    head -= part == 0 ? 0 : part == 1 ? heads : heads + kv;
    h = qkv_head(c, m, part, t, head, a->biases, a->norms, a->eps);
    if (part == 0) {
        int d = c->v[1].shape[2];
        DEVICE float *y = ROW(float, c->v, t) + (int64_t)head * d;
        for (int i = m.lane; i < d - n_rot / 2; i += WAVE)
            rope_put(rope_rotate(h, ROW(const float, cos_sin, t), n_rot, a->style, i), y);
        return;
    }
    to = kv_place(c->v + 1 + part, c->v + 4, t, head);
    if (!to) {
        fault(c);
        return;
    }
    m.thread = m.lane;
    m.threads = WAVE;
    kv_encode(m, c->v + 1 + part, to, h, ROW(const float, cos_sin, t), part == 1 ? n_rot : 0, a->style);
}

#endif
