/* context.k.h: attention to a cache of which each rank of a group has some blocks (context parallelism). Block b of the pool is
 * block b / ranks of the cache of rank b % ranks. attention_parts gives the softmax states over this rank's blocks: a row of the
 * output has the heads' sums of weighted values, then their largest scores, then their sums of weights. merge_parts scales a
 * rank's sums by what the weights of all ranks add up to.
 *
 * A group computes one head of one token. Its waves take the rank's blocks in turn, WAVE positions at a time as attention.k.h
 * does, and their states are merged in order. A token whose slot, position or blocks are out of range sees nothing and faults
 * the run.
 */
#ifndef SATCHEL_CONTEXT_K_H
#define SATCHEL_CONTEXT_K_H

#include "attention.k.h"
#include "modes.h"

/* Whether all blocks of the positions up to a->at are valid. The threads share the check. */
FN int good_parts(self m, CONSTANT arg_attention_parts *arg, THREAD const attended *a, LOCAL int32_t *room) {
    int bad = 0;
    for (int i = m.thread; i <= a->at / a->k->shape[2]; i += m.threads) {
        int block = a->blocks[i];
        bad |= block < 0 || (block % arg->ranks == arg->rank && block / arg->ranks >= a->k->shape[0]);
    }
    return !largest_of(m, bad, room);
}

/* A wave's state over its share of the rank's blocks. */
FN void attend_own(self m, CONSTANT arg_attention_parts *arg, THREAD const attended *a, LOCAL const float *q,
                   THREAD softmax *s) {
    int size = a->k->shape[2], own = 0;
    for (int i = 0; i <= a->at / size; i++) {
        attended part = *a;
        if (a->blocks[i] % arg->ranks != arg->rank || own++ % m.waves != m.wave)
            continue;
        part.from = i * size;
        part.to = a->at - part.from < size ? a->at + 1 : part.from + size;
        for (int start = part.from; start < part.to; start += WAVE)
            attend_wave(m, &part, q, start, s);
    }
}

/* Merges the waves' states into one, in the output: dv sums from `sums` on, and the other two numbers. */
FN void merge_states(self m, THREAD const softmax *s, int dv, LOCAL float *room, DEVICE float *sums, DEVICE float *most,
                     DEVICE float *total) {
    LOCAL float *mine = room + m.wave * (dv + 2);
    float top = -INFINITY, all = 0;
    if (m.lane == 0) {
        mine[0] = s->most;
        mine[1] = s->total;
    }
    for (int i = 0; i < VALUES; i++)
        if (i * WAVE + m.lane < dv)
            mine[2 + i * WAVE + m.lane] = s->sums[i];
    BARRIER(m);
    for (int w = 0; w < m.waves; w++)
        top = fmaxf(top, room[w * (dv + 2)]);
    for (int i = m.thread; i < dv; i += m.threads) {
        float sum = 0;
        for (int w = 0; w < m.waves; w++) {
            LOCAL const float *part = room + w * (dv + 2);
            sum = fmaf(part[2 + i], part[1] == 0 ? 0 : softmax_weight(part[0], top), sum);
        }
        sums[i] = sum;
    }
    if (m.thread)
        return;
    for (int w = 0; w < m.waves; w++) {
        LOCAL const float *part = room + w * (dv + 2);
        all = fmaf(part[1], part[1] == 0 ? 0 : softmax_weight(part[0], top), all);
    }
    *most = top;
    *total = all;
}

KERNEL(attention_parts, GROUP) {
    CONSTANT arg_attention_parts *arg = (CONSTANT arg_attention_parts *)c->arg;
    CONSTANT gpu_view *query = c->v + 1, *table = c->v + 6;
    int head = m.group[0], t = m.group[1], d = query->shape[2], heads = query->shape[1];
    int slot, good, dv = c->v->shape[1] / heads - 2;
    LOCAL float *q = (LOCAL float *)m.local + 4, *room = q + (d + 3) / 4 * 4;
    DEVICE float *sums, *most;
    attended a = {c->v + 2, c->v + 3};
    softmax s = {-INFINITY, 0};
    if (t >= rows_of(c, query))
        return;
    slot = i32_at(c->v + 4, t);
    a.at = i32_at(c->v + 5, t);
    sums = ROW(float, c->v, t) + (int64_t)head * dv;
    most = ROW(float, c->v, t) + (int64_t)heads * dv + head;
    good = inside(slot, table->shape[0]) && a.at >= 0 && a.at / a.k->shape[2] < table->shape[1];
    if (good) {
        a.blocks = ROW(const int32_t, table, slot);
        a.kv_head = head / (heads / a.k->shape[1]);
        a.dv = dv;
        a.scale = arg->scale;
        a.cap = arg->cap;
        a.slope = arg->alibi ? ROW(const float, c->v + 7, 0)[head] : 0;
        a.ranks = arg->ranks;
        good = good_parts(m, arg, &a, (LOCAL int32_t *)m.local);
    }
    for (int i = m.thread; i < d && good; i += m.threads)
        q[i] = ROW(const float, query, t)[(int64_t)head * d + i];
    BARRIER(m);
    if (good)
        attend_own(m, arg, &a, q, &s);
    else
        fault(c);
    merge_states(m, &s, dv, room, sums, most, most + heads);
}

KERNEL(merge_parts, GROUP) {
    CONSTANT arg_merge_parts *arg = (CONSTANT arg_merge_parts *)c->arg;
    int64_t i = own_number(c, m);
    int row = m.group[1], head, ranks = (int)(c->v[2].shape[1] / (2 * arg->heads));
    DEVICE const float *stats;
    float most, total, sink, mine = 0;
    if (i < 0)
        return;
    head = (int)(i / (c->v->shape[1] / arg->heads));
    stats = ROW(const float, c->v + 2, row) + head;
    sink = c->n_in == 3 ? ROW(const float, c->v + 3, 0)[head] : -INFINITY;
    most = sink;
    for (int r = 0; r < ranks; r++)
        if (stats[(2 * r + 1) * arg->heads] != 0)
            most = fmaxf(most, stats[2 * r * arg->heads]);
    total = c->n_in == 3 ? softmax_weight(sink, most) : 0;
    for (int r = 0; r < ranks; r++) {
        float seen = stats[(2 * r + 1) * arg->heads];
        float weight = seen != 0 ? softmax_weight(stats[2 * r * arg->heads], most) : 0;
        total = fmaf(weight, seen, total);
        mine = r == arg->rank ? weight : mine;
    }
    ROW(float, c->v, row)[i] = ROW(const float, c->v + 1, row)[i] * (total != 0 ? mine / total : 0);
}

#endif
