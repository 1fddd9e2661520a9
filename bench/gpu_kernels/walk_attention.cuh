/* walk_attention.cuh: a layer's heads and their attention as a phase of a walk: queries are rotated where they are used, the token's
 * own key and value are coded, written to the cache and met from shared memory, the past comes through the rings. A group has a
 * split of one KV head, its waves take 16 positions in turn; of several splits the last to end merges all, in order.
 */
#ifndef SATCHEL_CUDA_WALK_ATTENTION_CUH
#define SATCHEL_CUDA_WALK_ATTENTION_CUH

#include "walk.cuh"

/* RoPE of the queries; the token's own key and value where `fresh` is, and in the caches where `own`. raw: room for the heads. */
template <int FORMAT, int D>
static __device__ __forceinline__ void prepare_heads(const walk_phase &p, const walk_token &token, int kv_head,
                                                     int heads, float *q, char *fresh, float *raw, bool own) {
    const gpu_call *rope = p.call, *keys = p.call + 1, *values = p.call + 2;
    const int bytes = cache_row<FORMAT>::bytes(D), n_rot = rope->v[2].shape[1], i = threadIdx.x,
              n = (own ? heads + 2 : heads) * (D / 4);
    const int style = ((const arg_rope *)rope->arg)->style, back = 32 * WALK_WAVES - 1 - i;
    float *cos_sin = raw + (heads + 2) * D;
    if (i < n) {
        const int head = i / (D / 4);
        const float *from = head < heads    ? ROW(const float, rope->v + 1, 0) + (kv_head * heads + head) * D
                            : head == heads ? ROW(const float, keys->v + 2, 0) + kv_head * D
                                            : ROW(const float, values->v + 2, 0) + kv_head * D;
        ((float4 *)raw)[i] = ((const float4 *)from)[i % (D / 4)];
    }
    if (back < n_rot)
        cos_sin[back] = ROW(const float, rope->v + 2, 0)[back];
    readers_meet();
    for (int k = i; k < heads * D; k += 32 * WALK_WAVES)
        q[k] = rope_at(raw + k / D * D, cos_sin, n_rot, style, k % D);
    if (own) {
        code_row<FORMAT, D>(fresh, back, [&](int k) { return rope_at(raw + heads * D, cos_sin, n_rot, style, k); });
        code_row<FORMAT, D>(fresh + WALK_FRESH / 2, back - D, [&](int k) { return raw[(heads + 1) * D + k]; });
    }
    readers_meet();
    const int half = i / 256, at = i % 256;
    const gpu_view &v = half ? values->v[0] : keys->v[0];
    if (own && at < bytes / 2) {
        const int place = kv_head * v.shape[2] + (token.pos & (v.shape[2] - 1));
        ((uint16_t *)(v.data + (uint64_t)token.block * v.stride + (uint64_t)place * bytes))[at] =
            ((const uint16_t *)(fresh + half * (WALK_FRESH / 2)))[at];
    }
}

/* Where a split leaves its result of a head: the largest score, the weights' sum, D sums of values. */
static __device__ __forceinline__ float *walk_left(const gpu_call &c, int d, int head, int split, int most) {
    return (float *)c.scratch + (int64_t)(head * most + split) * (d + 2);
}

template <int D>
static __device__ __forceinline__ void end_heads(const gpu_call &c, const shared_results<D> &r, const walk_past &past,
                                                 int most_splits, uint32_t *count, volatile uint32_t *last) {
    const int heads = r.heads, first = past.head * heads;
    float *out = (float *)c.v[0].data;
    readers_meet();
    for (int i = threadIdx.x; i < heads * D; i += 32 * WALK_WAVES) {
        const int head = i / D, number = i % D;
        float most, total;
        const float sum =
            merged(WALK_WAVES, number, [&](int w) { return (const float *)r.of(w, head); }, &most, &total);
        if (past.used == 1) {
            out[(first + head) * D + number] = total == 0 ? 0 : sum / total;
            continue;
        }
        float *to = walk_left(c, D, first + head, past.split, most_splits);
        to[2 + number] = sum;
        if (number == 0)
            to[0] = most, to[1] = total;
    }
    if (past.used == 1)
        return;
    readers_meet();
    if (threadIdx.x == 0) {
        __threadfence();
        *last = atomicAdd(count + past.head, 1) == (uint32_t)past.used - 1;
        if (*last)
            count[past.head] = 0;
        __threadfence();
    }
    readers_meet();
    if (!*last)
        return;
    for (int i = threadIdx.x; i < heads * D; i += 32 * WALK_WAVES) {
        const int head = i / D, number = i % D;
        float most, total;
        const float sum = merged(
            past.used, number, [&](int s) { return (const float *)walk_left(c, D, first + head, s, most_splits); },
            &most, &total);
        out[(first + head) * D + number] = total == 0 ? 0 : sum / total;
    }
}

template <int FORMAT, int D>
static __device__ __noinline__ wave_ring walk_heads(const walk_phase &p, walk_token token, wave_ring ring, char *room,
                                                    int most, uint32_t *count) {
    const gpu_call &c = p.call[3];
    const walk_past past(c, token, most);
    const int heads = c.v[1].shape[1] / c.v[2].shape[1], wave = threadIdx.x / 32, bytes = cache_row<FORMAT>::bytes(D);
    const float scale = ((const arg_attention *)c.arg)->scale;
    if (past.split >= past.used)
        return ring;
    float *q = (float *)room;
    char *fresh = room + WALK_HEADS * D * 4;
    const shared_results<D> r = {(float *)(fresh + WALK_FRESH), heads};
    const bool own = past.split == past.used - 1;
    prepare_heads<FORMAT, D>(p, token, past.head, heads, q, fresh, r.at, own);
    WALK_STAMP(-1, 2);
    warp_state<D, 1> w;
    uint32_t b[1][2];
    load_query<FORMAT, D, 1>(q, heads, scale, w);
    for (int step = past.first + wave; step < past.last; step += WALK_WAVES) {
        const int key = step * SPAN;
        past_rows<FORMAT, D> rows = {ring.next(bytes * SPAN), bytes, past.start - key, token.pos - key};
        weigh<FORMAT, D, 1>(w, rows, 0, 0, key, past.start, token.pos, b[0]);
        ring.done();
        rows.at = ring.next(bytes * SPAN);
        add_values<FORMAT, D, 1>(w, rows, 0, b);
        ring.done();
    }
    if (own && wave == WALK_WAVES - 1) {
        past_rows<FORMAT, D> rows = {fresh, 0, 0, 1};
        weigh<FORMAT, D, 1>(w, rows, 0, 0, token.pos, token.pos, token.pos + 1, b[0]);
        rows.at = fresh + WALK_FRESH / 2;
        add_values<FORMAT, D, 1>(w, rows, 0, b);
    }
    WALK_STAMP(-1, 3);
    leave<D, 1>(w, r);
    end_heads<D>(c, r, past, most, count, (uint32_t *)r.of(WALK_WAVES, 0));
    return ring;
}

template <int D>
static __device__ __forceinline__ wave_ring walk_attention(const walk_phase &p, const walk_token &token, wave_ring ring,
                                                           char *room, int most, uint32_t *counter, uint32_t phase) {
    const bool good = token.good && (uint32_t)token.block < (uint32_t)p.call[3].v[2].shape[0];
    walk_wait(counter, phase);
    WALK_STAMP(-1, 1);
    if (!good) {
        fault(&p.call[3]);
        return ring;
    }
    switch (p.call[3].v[2].format) {
#define OF_CACHE(format)                                                                                               \
    case format:                                                                                                       \
        return walk_heads<format, D>(p, token, ring, room, most, counter + 1);
        OF_CACHE(CACHE_F16)
        OF_CACHE(CACHE_BF16)
        OF_CACHE(CACHE_FP8)
        OF_CACHE(CACHE_Q8_0)
        OF_CACHE(CACHE_Q4_0)
    }
    return ring;
}

#endif
