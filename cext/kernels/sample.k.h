/* sample.k.h: samples one token per row of logits (R, V), as runtime/sampling/chain.py defines it, and reports logprobs.
 *
 * sample has two kernels. sample_best finds the largest logit of each BEST_CHUNK of a row, which is all that a greedy row
 * needs. sample applies the sampling chain to the other rows, one group per row. A row with a NaN or +inf, or with -inf alone,
 * has no token (-1) and its logprobs are NaN. Logits are only read.
 */
#ifndef SATCHEL_SAMPLE_K_H
#define SATCHEL_SAMPLE_K_H

#include "sample_edits.k.h"

/* The largest logit of a part of a row, and its index; of equal ones the first. A damaged logit wins: see judged(). */
typedef struct {
    float x;
    int32_t at;
} best_of;

FN int better(best_of a, best_of b) {
    return a.x != b.x ? a.x > b.x : a.at < b.at;
}

/* Copies a struct to local memory field by field: not every language assigns structs across address spaces. */
#define PUT_BEST(to, b) ((to)->x = (b).x, (to)->at = (b).at)

/* Whether a logit is NaN or +inf. */
FN int is_damaged(float x) {
    return !(x <= MOST);
}

/* A logit and its index as a candidate. A damaged one becomes +inf with no index, which wins against everything. */
FN best_of judged(float x, int at) {
    best_of b;
    b.x = is_damaged(x) ? INFINITY : x;
    b.at = is_damaged(x) ? NO_TOKEN : at;
    return b;
}

FN DEVICE best_of *best_at(CONSTANT gpu_call *c, int row, int n) {
    DEVICE char *behind = (DEVICE char *)(uintptr_t)c->scratch;
    int groups = c->v[0].shape[0] < SAMPLE_GROUPS ? c->v[0].shape[0] : SAMPLE_GROUPS;
    int64_t stretches = (n + BEST_CHUNK - 1) / BEST_CHUNK;
    return (DEVICE best_of *)(behind + (int64_t)groups * ((n + 1) / 2 * 2) * SAMPLE_BYTES) + stretches * row;
}

FN best_of wave_best(self m, best_of b) {
    for (int o = WAVE / 2; o > 0; o /= 2) {
        best_of other;
        other.x = take_f32(m, b.x, m.lane ^ o);
        other.at = (int32_t)TAKE(m, (uint32_t)b.at, m.lane ^ o);
        b = better(other, b) ? other : b;
    }
    return b;
}

KERNEL(sample_best, GROUP) {
    LOCAL best_of *room = (LOCAL best_of *)m.local;
    int row = m.group[1], n = c->v[1].shape[1], first = m.group[0] * BEST_CHUNK;
    int end = first + BEST_CHUNK < n ? first + BEST_CHUNK : n;
    best_of b = {-INFINITY, first};
    if (row >= rows_of(c, c->v))
        return;
    for (int i = first + m.thread; i < end; i += m.threads) {
        best_of one = judged(ROW(const float, c->v + 1, row)[i], i);
        b = better(one, b) ? one : b;
    }
    b = wave_best(m, b);
    if (m.lane == 0)
        PUT_BEST(room + m.wave, b);
    BARRIER(m);
    if (m.thread)
        return;
    for (int i = 1; i < m.waves; i++) {
        best_of one = {room[i].x, room[i].at};
        b = better(one, b) ? one : b;
    }
    PUT_BEST(best_at(c, row, n) + m.group[0], b);
}

/* The greedy token of a row, in the first wave; 0 in the others. */
FN int greedy_token(self m, CONSTANT gpu_call *c, int row, int n) {
    DEVICE const best_of *all = best_at(c, row, n);
    best_of b = {all[0].x, all[0].at};
    if (m.wave)
        return 0;
    for (int i = m.lane; i < (n + BEST_CHUNK - 1) / BEST_CHUNK; i += WAVE) {
        best_of one = {all[i].x, all[i].at};
        b = better(one, b) ? one : b;
    }
    b = wave_best(m, b);
    return b.x == -INFINITY ? NO_TOKEN : b.at;
}

FN row_facts facts_of(CONSTANT gpu_call *c, int row) {
    CONSTANT gpu_view *ring = c->v + 2;
    int slot = i32_at(c->v + 3, row);
    row_facts r;
    r.params = ROW(const char, c->v + 5, row);
    r.width = ring->shape[1];
    r.vocabulary = c->v[1].shape[1];
    r.pos = i32_at(c->v + 4, row);
    r.ring = inside(slot, ring->shape[0]) && r.pos >= 0 ? ROW(const int32_t, ring, slot) : NULL;
    r.edits = c->mode == SAMPLE_MASKED && is_edited(r.params) ? ROW(const int32_t, c->v + 7, row) : NULL;
    return r;
}

/* Fills the candidate set, in scratch, with all logits, -INFINITY for those whose bit of the bitmask (NULL: none) is clear; 0 if
 * one of them is damaged. */
FN int fill_set(self m, THREAD set *s, DEVICE const float *logits, DEVICE const uint32_t *bitmask) {
    int64_t damaged = 0;
    for (int i = m.thread; i < s->n; i += m.threads) {
        s->own_x[0][i] = !bitmask || bitmask[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
        damaged += is_damaged(logits[i]);
    }
    s->x = s->own_x[0];
    s->turn = 1;
    changed(m, s);
    return group_sum_i64(m, damaged, s->room->sums) == 0;
}

KERNEL(sample, SAMPLE_THREADS) {
    int n = c->v[1].shape[1], rows = rows_of(c, c->v);
    for (int row = m.group[0]; row < rows; row += SAMPLE_GROUPS) {
        row_facts r = facts_of(c, row);
        set s = set_of(c, m, m.group[0], n);
        DEVICE const uint32_t *bitmask =
            c->mode == SAMPLE_MASKED && is_masked(r.params) ? ROW(const uint32_t, c->v + 6, row) : NULL;
        float nll_bits = 0;
        int token = NO_TOKEN;
        /* Most rows of a step that waits for the host are sampled as in any other; a bitmask alone costs no pass over the logits. */
        if (is_greedy(r.params) && !r.edits && !bitmask)
            token = greedy_token(m, c, row, n);
        else if (fill_set(m, &s, ROW(const float, c->v + 1, row), r.edits ? NULL : bitmask))
            token = sample_row(m, &s, &r, r.edits ? c->v[7].shape[1] : 0, bitmask, &nll_bits);
        BARRIER(m);
        if (m.thread)
            continue;
        if (token == BAD_INDEX)
            fault(c);
        ROW(int32_t, c->v, row)[0] = token == BAD_INDEX ? 0 : token;
        if (c->mode == SAMPLE_MASKED)
            ROW(int32_t, c->v, row)[1] = (int32_t)f32_bits(nll_bits);
    }
}

/* --- logprobs */

FN void report_row(self m, THREAD set *s, CONSTANT gpu_call *c, int row, int id, int k) {
    DEVICE float *out = ROW(float, c->v, row);
    double log_total;
    float mine;
    int64_t above = 0;
    set top;
    if (!fill_set(m, s, ROW(const float, c->v + 1, row), NULL) || s->all_lost || id == NO_TOKEN) {
        for (int i = m.thread; i < 2 + 2 * k; i += m.threads)
            out[i] = f32_nan();
        return;
    }
    log_total = exact_log(total_weight(m, s)) - WEIGHT_BITS * LN2;
    mine = distance(s, id);
    for (int i = m.thread; i < s->n; i += m.threads)
        above += distance(s, i) < mine;
    above = group_sum_i64(m, above, s->room->sums);
    top = *s;
    keep_count(m, &top, k);
    for (int i = m.thread; i < top.n; i += m.threads) {
        int rank = rank_in(&top, i);
        out[2 + rank] = (float)(-(double)distance(&top, i) - log_total);
        out[2 + k + rank] = (float)id_of(&top, i);
    }
    if (m.thread)
        return;
    out[0] = (float)(-(double)mine - log_total);
    out[1] = (float)above;
}

KERNEL(logprobs, SAMPLE_THREADS) {
    int n = c->v[1].shape[1], rows = rows_of(c, c->v), k = ((CONSTANT arg_logprobs *)c->arg)->k;
    for (int row = m.group[0]; row < rows; row += SAMPLE_GROUPS) {
        int id = i32_at(c->v + 2, row), wanted = c->n_in == 2 || is_reported(ROW(const char, c->v + 3, row));
        set s = set_of(c, m, m.group[0], n);
        BARRIER(m);
        if (wanted && (inside(id, n) || id == NO_TOKEN)) {
            report_row(m, &s, c, row, id, k);
            continue;
        }
        for (int i = m.thread; i < 2 + 2 * k; i += m.threads)
            ROW(float, c->v, row)[i] = 0;
        if (wanted)
            fault(c);
    }
}

#endif
