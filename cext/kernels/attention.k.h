/* attention.k.h: paged attention of q (T, H, D) over caches (blocks, KV, block, D): (T, H * D), by online softmax.
 *
 * A group computes one query head of one token. Its waves take chunks of WAVE positions in turn: each lane scores one position,
 * then the lanes divide the columns of the values among them. Chunks begin at multiples of WAVE, and the waves' results are
 * merged in order, so a token's bits depend on the positions it sees alone. A token whose slot, position or blocks are out of
 * range gets zeros and faults the run.
 */
#ifndef SATCHEL_ATTENTION_K_H
#define SATCHEL_ATTENTION_K_H

#include "elementwise.k.h"
#include "kv_rows.k.h"
#include "modes.h"

enum { VALUES = KV_VALUES_MOST / WAVE /* columns of a value per lane */ };

typedef struct {
    CONSTANT gpu_view *k, *v;
    DEVICE const int32_t *blocks; /* the slot's row of the block table */
    /* The query sees positions from .. to - 1; with a list (sparse attention), list[from] .. list[to - 1]. */
    DEVICE const int32_t *list;
    int kv_head, from, to;
    int dv;           /* columns of a value; a row of v has more where it is also the key (MLA) */
    float scale, cap; /* 0: scores are not capped */
    float slope;      /* ALiBi: a score falls by this per position of distance from `at`, the query's position */
    int at;
    int ranks; /* > 0: the cache has a part of the pool's blocks, block b at b / ranks (context.k.h) */
    DEVICE const char *own_key, *own_value; /* NULL, or the rows of `at`, which lie apart (attention_step.k.h) */
} attended;

/* State of the online softmax: the sum of weights and of weighted values so far, both relative to e^most. */
typedef struct {
    float most, total, sums[VALUES]; /* column i is sums[i / WAVE] of lane i % WAVE */
} softmax;

/* Row of the i-th position. */
FN DEVICE const char *cached_row(THREAD const attended *a, CONSTANT gpu_view *cache, int i) {
    int size = cache->shape[2], pos = a->list ? a->list[i] : i, block = a->blocks[pos / size];
    if (a->own_key && pos == a->at)
        return cache == a->k ? a->own_key : a->own_value;
    return ROW(const char, cache, a->ranks ? block / a->ranks : block) +
           kv_bytes(cache->format, cache->shape[3]) * ((int64_t)a->kv_head * size + pos % size);
}

/* e^(x - most); 0 where most is -inf, because no position was seen. */
FN float softmax_weight(float x, float most) {
    return x == most ? 1.0f : expf(x - most);
}

FN float score_at(THREAD const attended *a, LOCAL const float *q, int pos) {
    float score = kv_dot(a->k->format, cached_row(a, a->k, pos), q, a->k->shape[3]) * a->scale;
    score = a->cap > 0 ? a->cap * tanh_of(score / a->cap) : score;
    return score - a->slope * (float)(pos < a->at ? a->at - pos : pos - a->at);
}

/* Adds the seen ones of WAVE positions to the state. */
FN void attend_wave(self m, THREAD const attended *a, LOCAL const float *q, int start, THREAD softmax *s) {
    int pos = start + m.lane, dv = a->dv, seen = pos >= a->from && pos < a->to;
    float score = seen ? score_at(a, q, pos) : -INFINITY;
    float most = fmaxf(s->most, wave_most(m, score)), keep = softmax_weight(s->most, most);
    float weight = seen ? softmax_weight(score, most) : 0;
    s->most = most;
    s->total = s->total * keep + wave_sum(m, weight);
    for (int i = 0; i < VALUES; i++)
        s->sums[i] *= keep;
    for (int j = 0; j < WAVE; j++) {
        float w = take_f32(m, weight, j);
        DEVICE const char *row;
        pos = start + j;
        if (pos < a->from || pos >= a->to)
            continue;
        row = cached_row(a, a->v, pos);
        for (int i = 0; i < VALUES; i++)
            if (i * WAVE + m.lane < dv)
                s->sums[i] = fmaf(w, kv_at(a->v->format, row, i * WAVE + m.lane), s->sums[i]);
    }
}

/* Merges the waves' results: each wave stores most, total and its dv sums in local memory, then all threads compute the output.
 * An attention sink (a logit; -inf: none) adds to the total and has no value.
 */
FN void merge_waves(self m, THREAD const softmax *s, int dv, float sink, LOCAL float *room, DEVICE float *y) {
    LOCAL float *mine = room + m.wave * (dv + 2);
    float most = sink;
    if (m.lane == 0) {
        mine[0] = s->most;
        mine[1] = s->total;
    }
    for (int i = 0; i < VALUES; i++)
        if (i * WAVE + m.lane < dv)
            mine[2 + i * WAVE + m.lane] = s->sums[i];
    BARRIER(m);
    for (int w = 0; w < m.waves; w++)
        most = fmaxf(most, room[w * (dv + 2)]);
    for (int i = m.thread; i < dv; i += m.threads) {
        float total = sink == -INFINITY ? 0 : softmax_weight(sink, most), sum = 0;
        for (int w = 0; w < m.waves; w++) {
            LOCAL const float *part = room + w * (dv + 2);
            float keep = part[1] == 0 ? 0 : softmax_weight(part[0], most);
            total = fmaf(part[1], keep, total);
            sum = fmaf(part[2 + i], keep, sum);
        }
        y[i] = sum / total;
    }
}

/* The largest x of the group's threads, for all of them. room: KV_WAVES numbers. */
FN int largest_of(self m, int x, LOCAL int32_t *room) {
    for (int o = WAVE / 2; o > 0; o /= 2) {
        int other = (int)TAKE(m, (uint32_t)x, m.lane ^ o);
        x = other > x ? other : x;
    }
    if (m.lane == 0)
        room[m.wave] = x;
    BARRIER(m);
    for (int i = 0; i < m.waves; i++)
        x = room[i] > x ? room[i] : x;
    BARRIER(m);
    return x;
}

/* Whether all blocks of the seen positions are valid. The threads share the check. */
FN int good_blocks(self m, THREAD const attended *a, LOCAL int32_t *room) {
    int size = a->k->shape[2], bad = 0;
    for (int i = a->from / size + m.thread; i <= (a->to - 1) / size; i += m.threads)
        bad |= !inside(a->blocks[i], a->k->shape[0]);
    return !largest_of(m, bad, room);
}

/* The last position of this slot among the step's tokens. The threads share the search, and all get the result. */
FN int last_fed(CONSTANT gpu_call *c, self m, int slot, LOCAL int32_t *room) {
    int n = rows_of(c, c->v + 1), last = -1;
    for (int t = m.thread; t < n; t += m.threads)
        if (i32_at(c->v + 4, t) == slot && i32_at(c->v + 5, t) > last)
            last = i32_at(c->v + 5, t);
    return largest_of(m, last, room);
}

/* Computes a query, whose numbers lie in q, by all threads of the group: dv columns of y. */
FN void attend(self m, THREAD const attended *a, LOCAL const float *q, float sink, LOCAL float *room, DEVICE float *y) {
    softmax s = {-INFINITY, 0};
    for (int chunk = a->from / WAVE; chunk <= (a->to - 1) / WAVE; chunk++)
        if (chunk % m.waves == m.wave)
            attend_wave(m, a, q, chunk * WAVE, &s);
    merge_waves(m, &s, a->dv, sink, room, y);
}

/* Sets the range of positions that a query at `pos` sees: no future, and of the past what its window and its chunk have (0: all). */
FN void set_causal(int window, int chunk, int pos, THREAD attended *a) {
    int first = chunk > 0 ? pos / chunk * chunk : 0;
    a->to = pos + 1;
    a->from = window > 0 && a->to > window ? a->to - window : 0;
    a->from = first > a->from ? first : a->from;
}

/* The same where it may see the future. last: the last position of its slot in the step. */
FN void set_sight(CONSTANT arg_attention *arg, int pos, int last, THREAD attended *a) {
    int half = arg->window / 2, chunk = arg->chunk > 0 ? pos / arg->chunk * arg->chunk : 0;
    if (arg->causal) {
        set_causal(arg->window, arg->chunk, pos, a);
        return;
    }
    a->from = 0;
    a->to = last + 1;
    if (arg->window > 0) {
        a->from = pos > half ? pos - half : 0;
        a->to = a->to - pos - 1 > half ? pos + half + 1 : a->to;
    }
    a->from = chunk > a->from ? chunk : a->from;
}

KERNEL(attention, GROUP) {
    CONSTANT arg_attention *arg = (CONSTANT arg_attention *)c->arg;
    CONSTANT gpu_view *query = c->v + 1, *table = c->v + 6;
    int head = m.group[0], t = m.group[1], d = query->shape[2], dv = arg->value ? arg->value : c->v[3].shape[3];
    int slot, pos, last, good;
    float sink = c->n_in - arg->alibi == 7 ? ROW(const float, c->v + 7, 0)[head] : -INFINITY;
    /* 16-byte aligned: compilers load four floats of q at once */
    LOCAL float *q = (LOCAL float *)m.local + 4, *room = q + (d + 3) / 4 * 4;
    DEVICE float *y;
    attended a = {c->v + 2, c->v + 3};
    if (t >= rows_of(c, query))
        return;
    slot = i32_at(c->v + 4, t);
    pos = i32_at(c->v + 5, t);
    y = ROW(float, c->v, t) + (int64_t)head * dv;
    last = arg->causal ? pos : last_fed(c, m, slot, (LOCAL int32_t *)m.local);
    good = inside(slot, table->shape[0]) && pos >= 0 && last / a.k->shape[2] < table->shape[1];
    if (good) {
        a.blocks = ROW(const int32_t, table, slot);
        a.kv_head = head / (query->shape[1] / a.k->shape[1]);
        a.dv = dv;
        a.scale = arg->scale;
        a.cap = arg->cap;
        a.slope = arg->alibi ? ROW(const float, c->v + c->n_in, 0)[head] : 0;
        a.at = pos;
        set_sight(arg, pos, last, &a);
        good = good_blocks(m, &a, (LOCAL int32_t *)m.local);
    }
    for (int i = m.thread; i < (good ? d : dv); i += m.threads)
        if (good)
            q[i] = ROW(const float, query, t)[(int64_t)head * d + i];
        else
            y[i] = 0;
    if (!good) {
        fault(c);
        return;
    }
    BARRIER(m);
    attend(m, &a, q, sink, room, y);
}

#endif
