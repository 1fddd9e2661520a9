/* index.k.h: index_positions, the k positions of its past that a token attends to (DeepSeek-V3.2's lightning indexer), ascending
 * and padded with -1.
 *
 * score(s) = sum over index heads of weight * max(0, q . key_s), in float32 and in order: it depends on token and position alone.
 * Scores go to scratch as sort keys, and the k-th largest key is found by its digits (radix select). A past of at most k
 * positions is taken whole, without reading the cache. A token whose slot or position is out of range gets -1s and faults the
 * run; a position whose block is out of range ranks last and faults it too.
 *
 * Where scratch has room for the scores of all tokens, many groups make a token's (index_scores), and then one selects
 * (index_top). Otherwise a group does both for one token after the other (index_positions).
 */
#ifndef SATCHEL_INDEX_K_H
#define SATCHEL_INDEX_K_H

#include "kv_rows.k.h"
#include "modes.h"
#include "port.h"

enum { INDEX_DIGITS = 256 };

/* Of a group that selects. */
typedef struct {
    int64_t sums[GROUP / 8]; /* one per wave */
    uint32_t counts[INDEX_DIGITS];
} index_room;

_Static_assert(sizeof(index_room) <= INDEX_LOCAL, "the host gives a group as much local memory");

/* A token's past. */
typedef struct {
    DEVICE const int32_t *blocks; /* the slot's row of the block table */
    DEVICE uint32_t *keys;        /* of its positions' scores */
    int n;                        /* positions */
} index_past;

/* room: which of the scratch's stretches is the token's. False if its slot or position is out of range. */
FN int set_index_past(CONSTANT gpu_call *c, int t, int room, THREAD index_past *p) {
    CONSTANT gpu_view *table = c->v + 6;
    int slot = i32_at(c->v + 4, t), pos = i32_at(c->v + 5, t), size = c->v[3].shape[2];
    if (!inside(slot, table->shape[0]) || pos < 0 || pos / size >= table->shape[1])
        return 0;
    p->blocks = ROW(const int32_t, table, slot);
    p->keys = (DEVICE uint32_t *)(uintptr_t)c->scratch + (int64_t)room * table->shape[1] * size;
    p->n = pos + 1;
    return 1;
}

/* --- scores */

/* A score as a sort key: a larger one has a larger key. NaN is the least, beside -inf; zeros are equal. */
FN uint32_t index_key(float score) {
    uint32_t bits = f32_bits(score == score ? (score == 0 ? 0.0f : score) : -INFINITY);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Cached key of a position; NULL, and a fault, if its block is out of range. */
FN DEVICE const char *indexed_row(CONSTANT gpu_call *c, THREAD const index_past *p, int pos) {
    CONSTANT gpu_view *cache = c->v + 3;
    int size = cache->shape[2], block = p->blocks[pos / size];
    if (inside(block, cache->shape[0]))
        return ROW(const char, cache, block) + kv_bytes(cache->format, cache->shape[3]) * (pos % size);
    fault(c);
    return NULL;
}

/* dots[j] = key . query j. queries: element i of all INDEX_HEADS queries lies at queries[i * INDEX_HEADS]. */
FN void index_dots(uint32_t format, DEVICE const char *key, LOCAL const float *queries, int d, THREAD float *dots) {
    for (int j = 0; j < INDEX_HEADS; j++)
        dots[j] = 0;
#define INDEX_SUM(format)                                                                                              \
    case format:                                                                                                       \
        for (int i = 0; i < d; i++) {                                                                                  \
            float x = kv_at(format, key, i);                                                                           \
            for (int j = 0; j < INDEX_HEADS; j++)                                                                      \
                dots[j] = fmaf(x, queries[i * INDEX_HEADS + j], dots[j]);                                              \
        }                                                                                                              \
        break;
    switch (format) {
        INDEX_SUM(KV_F32)
        INDEX_SUM(KV_F16)
        INDEX_SUM(KV_BF16)
        INDEX_SUM(KV_FP8)
        INDEX_SUM(KV_Q4_0)
        INDEX_SUM(KV_Q8_0)
    }
#undef INDEX_SUM
}

/* Loads the queries of heads `first` to first + INDEX_HEADS - 1; those beyond the last head are zeros. */
FN void load_index_queries(CONSTANT gpu_call *c, self m, int t, int first, LOCAL float *queries) {
    CONSTANT gpu_view *q = c->v + 1;
    int d = q->shape[2];
    for (int i = m.thread; i < INDEX_HEADS * d; i += m.threads) {
        int head = first + i % INDEX_HEADS;
        queries[i] = head < q->shape[1] ? ROW(const float, q, t)[(int64_t)head * d + i / INDEX_HEADS] : 0;
    }
}

/* Scores positions `from` to from + m.threads - 1 of token t, as far as it has them: a thread has one. */
FN void score_positions(CONSTANT gpu_call *c, self m, int t, THREAD const index_past *p, int from) {
    CONSTANT gpu_view *q = c->v + 1;
    LOCAL float *queries = (LOCAL float *)m.local;
    DEVICE const float *weights = ROW(const float, c->v + 2, t);
    int pos = from + m.thread;
    DEVICE const char *key = pos < p->n ? indexed_row(c, p, pos) : NULL;
    float score = 0;
    for (int first = 0; first < q->shape[1]; first += INDEX_HEADS) {
        float dots[INDEX_HEADS];
        /* The memory is read no more: for other heads, or by a selection. */
        BARRIER(m);
        load_index_queries(c, m, t, first, queries);
        BARRIER(m);
        if (!key)
            continue;
        index_dots(c->v[3].format, key, queries, q->shape[2], dots);
        for (int j = 0; j < INDEX_HEADS && first + j < q->shape[1]; j++)
            score = fmaf(weights[first + j], dots[j] > 0 || dots[j] != dots[j] ? dots[j] : 0, score);
    }
    if (pos < p->n)
        p->keys[pos] = key ? index_key(score) : 0; /* 0 is below the key of any score */
}

/* --- selection */

/* The k-th largest of the keys, k <= n. *equal: how many of those that equal it are among the k first. */
FN uint32_t index_border(self m, THREAD const index_past *p, int k, LOCAL uint32_t *counts, THREAD uint32_t *equal) {
    uint32_t border = 0, left = (uint32_t)k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int digit = INDEX_DIGITS - 1;
        for (int i = m.thread; i < INDEX_DIGITS; i += m.threads)
            counts[i] = 0;
        BARRIER(m);
        for (int i = m.thread; i < p->n; i += m.threads)
            if (((uint64_t)(p->keys[i] ^ border) >> (shift + 8)) == 0)
                ADD_LOCAL(&counts[p->keys[i] >> shift & (INDEX_DIGITS - 1)], 1u);
        BARRIER(m);
        for (; digit > 0 && counts[digit] < left; digit--)
            left -= counts[digit];
        border |= (uint32_t)digit << shift;
        BARRIER(m);
    }
    *equal = left;
    return border;
}

/* 2^32 for a key above the border, 1 for one that equals it: sums of these hold both counts. */
FN int64_t index_counts(uint32_t key, uint32_t border) {
    return key > border ? (int64_t)1 << 32 : key == border;
}

/* Writes the positions of the keys above the border, and the first `equal` of those that equal it, in ascending order. Each wave
 * has a stretch of positions. */
FN void take_positions(self m, THREAD const index_past *p, uint32_t border, uint32_t equal, LOCAL int64_t *sums,
                       DEVICE int32_t *to) {
    int each = (p->n - 1) / (m.waves * WAVE) * WAVE + WAVE, from = m.wave * each;
    int end = from + each < p->n ? from + each : p->n;
    int64_t before = 0;
    for (int i = from + m.lane; i < end; i += WAVE)
        before += index_counts(p->keys[i], border);
    before = wave_sum_i64(m, before);
    if (m.lane == 0)
        sums[m.wave] = before;
    BARRIER(m);
    before = 0;
    for (int i = 0; i < m.wave; i++)
        before += sums[i];
    for (; from < end; from += WAVE) {
        int i = from + m.lane;
        int64_t own = i < end ? index_counts(p->keys[i], border) : 0, sum = own;
        uint32_t equals, at;
        for (int o = 1; o < WAVE; o *= 2) {
            int64_t other = take_i64(m, sum, m.lane >= o ? m.lane - o : m.lane);
            sum += m.lane >= o ? other : 0;
        }
        equals = (uint32_t)(before + sum - own);
        at = (uint32_t)((before + sum - own) >> 32) + (equals < equal ? equals : equal);
        if (own > 1 || (own == 1 && equals < equal))
            to[at] = i;
        before += take_i64(m, sum, WAVE - 1);
    }
}

FN void select_positions(self m, THREAD const index_past *p, int k, DEVICE int32_t *to) {
    LOCAL index_room *room = (LOCAL index_room *)m.local;
    uint32_t equal, border = index_border(m, p, k, room->counts, &equal);
    take_positions(m, p, border, equal, room->sums, to);
}

/* Writes the positions of a past of at most k, none if it is out of range; false if there are more. */
FN int took_all_positions(CONSTANT gpu_call *c, self m, int good, THREAD const index_past *p, int k,
                          DEVICE int32_t *to) {
    if (good && p->n > k)
        return 0;
    for (int i = m.thread; i < k; i += m.threads)
        to[i] = good && i < p->n ? i : -1;
    if (!good)
        fault(c);
    return 1;
}

KERNEL(index_scores, GROUP) {
    int t = m.group[1], from = m.group[0] * m.threads, k = c->v[0].shape[1];
    index_past p;
    if (t < rows_of(c, c->v + 1) && set_index_past(c, t, t, &p) && p.n > k && from < p.n)
        score_positions(c, m, t, &p, from);
}

KERNEL(index_top, GROUP) {
    int t = m.group[0], k = c->v[0].shape[1];
    DEVICE int32_t *to = ROW(int32_t, c->v, t);
    index_past p;
    if (t < rows_of(c, c->v + 1) && !took_all_positions(c, m, set_index_past(c, t, t, &p), &p, k, to))
        select_positions(m, &p, k, to);
}

KERNEL(index_positions, GROUP) {
    int k = c->v[0].shape[1], n = rows_of(c, c->v + 1), rooms = INDEX_ROOMS(c->v[6].shape[1] * c->v[3].shape[2]);
    for (int t = m.group[0]; t < n; t += rooms) {
        DEVICE int32_t *to = ROW(int32_t, c->v, t);
        index_past p;
        if (took_all_positions(c, m, set_index_past(c, t, m.group[0], &p), &p, k, to))
            continue;
        for (int from = 0; from < p.n; from += m.threads)
            score_positions(c, m, t, &p, from);
        BARRIER(m);
        select_positions(m, &p, k, to);
    }
}

#endif
