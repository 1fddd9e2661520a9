/* attention_step.k.h: rope_qkv_attention: attention of a layer for one token, with what stands before it: the biases or norms of its
 * heads, RoPE of queries and keys, and the write of keys and values to the cache.
 *
 * A group computes one query head, as in attention.k.h. The token's own key and value it makes itself, in the cache's format in
 * scratch, because the group that writes them to the cache, that of a KV head's first query head, may be later. Results and caches
 * are those of rope_qkv_write and attention, bit for bit. CUDA has a kernel of its own.
 */
#ifndef SATCHEL_ATTENTION_STEP_K_H
#define SATCHEL_ATTENTION_STEP_K_H

#include "attention.k.h"
#include "kv.k.h"

#ifndef __CUDACC__

/* Wave 0 makes the query, in local memory, waves 1 and 2 the key and the value: `own`, and in the cache if this head writes them. */
FN void step_heads(CONSTANT gpu_call *c, self m, int head, THREAD const attended *a, LOCAL float *q) {
    CONSTANT arg_rope_qkv_attention *arg = (CONSTANT arg_rope_qkv_attention *)c->arg;
    CONSTANT gpu_view *cos_sin = c->v + 7, *cache = c->v + 1 + m.wave;
    int group = c->v[1].shape[1] / a->k->shape[1], n_rot = cos_sin->shape[1], d = c->v[1].shape[2];
    rope_head h;
    if (m.wave > 2)
        return;
    h = qkv_head(c, m, m.wave, 0, m.wave ? a->kv_head : head, arg->biases, arg->norms, arg->eps);
    m.thread = m.lane;
    m.threads = WAVE;
    if (m.wave == 0) {
        for (int i = m.lane; i < d - n_rot / 2; i += WAVE) {
            rope_pair r = rope_rotate(h, ROW(const float, cos_sin, 0), n_rot, arg->style, i);
            q[r.first] = r.a;
            if (r.second >= 0)
                q[r.second] = r.b;
        }
        return;
    }
    n_rot = m.wave == 1 ? n_rot : 0;
    kv_encode(m, cache, (DEVICE char *)(m.wave == 1 ? a->own_key : a->own_value), h, ROW(const float, cos_sin, 0),
              n_rot, arg->style);
    if (head % group == 0)
        kv_encode(m, cache, kv_place(cache, c->v + 4, 0, a->kv_head), h, ROW(const float, cos_sin, 0), n_rot,
                  arg->style);
}

KERNEL(rope_qkv_attention, GROUP) {
    CONSTANT arg_rope_qkv_attention *arg = (CONSTANT arg_rope_qkv_attention *)c->arg;
    CONSTANT gpu_view *query = c->v + 1, *table = c->v + 6;
    int head = m.group[0], d = query->shape[2], slot, pos, good;
    float sink =
        (int)c->n_in > 9 + 3 * arg->biases + 2 * arg->norms ? ROW(const float, c->v + c->n_in, 0)[head] : -INFINITY;
    /* 16-byte aligned, as in attention.k.h */
    LOCAL float *q = (LOCAL float *)m.local + 4, *room = q + (d + 3) / 4 * 4;
    DEVICE float *y = ROW(float, c->v, 0) + (int64_t)head * d;
    attended a = {c->v + 2, c->v + 3};
    if (rows_of(c, query) < 1)
        return;
    slot = i32_at(c->v + 4, 0);
    pos = i32_at(c->v + 5, 0);
    good = inside(slot, table->shape[0]) && pos >= 0 && pos / a.k->shape[2] < table->shape[1];
    if (good) {
        a.blocks = ROW(const int32_t, table, slot);
        a.kv_head = head / (query->shape[1] / a.k->shape[1]);
        a.dv = d;
        a.scale = arg->scale;
        a.cap = arg->cap;
        a.at = pos;
        a.own_key = (DEVICE const char *)(uintptr_t)c->scratch + (int64_t)head * 2 * STEP_ROW(d);
        a.own_value = a.own_key + STEP_ROW(d);
        set_causal(arg->window, arg->chunk, pos, &a);
        good = good_blocks(m, &a, (LOCAL int32_t *)m.local);
    }
    if (!good) {
        for (int i = m.thread; i < d; i += m.threads)
            y[i] = 0;
        fault(c);
        return;
    }
    step_heads(c, m, head, &a, q);
    BARRIER(m);
    attend(m, &a, q, sink, room, y);
}

#endif

#endif
