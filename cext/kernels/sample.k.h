/* sample.k.h: samples one token per row of logits (R, V), as runtime/sampling/chain.py defines it, and reports logprobs.
 *
 * One group per row computes a chain, and a pass of it over a whole vocabulary takes longer than many layers. So sample_best first
 * finds the largest logit of each stretch of BEST_CHUNK, with all of the device: it is all that a greedy row needs, and where a
 * chain begins with top_k or min_p it bounds how far from the largest the candidates lie that this first stage keeps. Only the
 * stretches that reach within the bound are read again, and the chain runs on the few candidates found there: a superset of what
 * its first stage keeps, which is all that any later stage sees. Other chains, edited rows, and candidates of which too many are
 * equal take all logits. A row with a NaN or +inf, or with -inf alone, has no token (-1) and its logprobs are NaN. Logits are only read.
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

FN int stretches_of(int n) {
    return (n + BEST_CHUNK - 1) / BEST_CHUNK;
}

/* The best of each stretch of a row, in scratch behind the groups' sets. */
FN DEVICE best_of *best_at(CONSTANT gpu_call *c, int row, int n) {
    DEVICE char *behind = (DEVICE char *)(uintptr_t)c->scratch;
    int groups = c->v[0].shape[0] < SAMPLE_GROUPS ? c->v[0].shape[0] : SAMPLE_GROUPS;
    return (DEVICE best_of *)(behind + (int64_t)groups * ((n + 1) / 2 * 2) * SAMPLE_BYTES) +
           (int64_t)stretches_of(n) * row;
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

/* A logit of a row; -INFINITY where the bit of its token in the bitmask (NULL: none) is clear. */
FN float allowed(DEVICE const float *logits, DEVICE const uint32_t *bitmask, int i) {
    return !bitmask || bitmask[i / 32] >> i % 32 & 1 ? logits[i] : -INFINITY;
}

/* Finds the best token of this wave's stretch of a row, among those that the bitmask (NULL: none) allows; a damaged logit is found
 * wherever it is. */
FN void find_best(self m, CONSTANT gpu_call *c, int row, DEVICE const uint32_t *bitmask) {
    DEVICE const float *logits = ROW(const float, c->v + 1, row);
    int n = c->v[1].shape[1], stretch = m.group[0] * m.waves + m.wave, first = stretch * BEST_CHUNK;
    int end = first + BEST_CHUNK < n ? first + BEST_CHUNK : n;
    best_of b = {-INFINITY, first};
    for (int i = first + m.lane; i < end; i += WAVE) {
        best_of one = judged(logits[i], i);
        if (one.at != NO_TOKEN)
            one.x = allowed(logits, bitmask, i);
        b = better(one, b) ? one : b;
    }
    b = wave_best(m, b);
    if (m.lane == 0 && first < n)
        PUT_BEST(best_at(c, row, n) + stretch, b);
}

/* The row's token bitmask; NULL: it has none. */
FN DEVICE const uint32_t *bitmask_of(CONSTANT gpu_call *c, int row) {
    return c->mode == SAMPLE_MASKED && is_masked(ROW(const char, c->v + 5, row)) ? ROW(const uint32_t, c->v + 6, row)
                                                                                 : NULL;
}

KERNEL(sample_best, BEST_THREADS) {
    int row = m.group[1];
    if (row < rows_of(c, c->v))
        find_best(m, c, row, bitmask_of(c, row));
}

/* The greedy token of a row, in the first wave; 0 in the others. */
FN int greedy_token(self m, CONSTANT gpu_call *c, int row, int n) {
    DEVICE const best_of *all = best_at(c, row, n);
    best_of b = {all[0].x, all[0].at};
    if (m.wave)
        return 0;
    for (int i = m.lane; i < stretches_of(n); i += WAVE) {
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
        s->own_x[0][i] = allowed(logits, bitmask, i);
        damaged += is_damaged(logits[i]);
    }
    s->x = s->own_x[0];
    s->turn = 1;
    changed(m, s);
    return group_sum_i64(m, damaged, s->room->sums) == 0;
}

/* The largest logit of a row; +INFINITY where one is damaged. */
FN float row_best(self m, CONSTANT gpu_call *c, int row, int n, LOCAL sample_room *room) {
    DEVICE const best_of *all = best_at(c, row, n);
    float best = -INFINITY;
    for (int i = m.thread; i < stretches_of(n); i += m.threads)
        best = fmaxf(best, all[i].x);
    return group_most(m, best, room->floats);
}

/* A distance from the largest logit within which k candidates of a row lie at least: those of the k best stretches. -1: there are fewer
 * stretches, or too many. */
FN float reach_of(self m, CONSTANT gpu_call *c, int row, int n, float best, int k, LOCAL sample_room *room) {
    DEVICE const best_of *all = best_at(c, row, n);
    int count = stretches_of(n);
    float reach;
    if (k > count || count > BEST_MOST)
        return -1;
    for (int i = m.thread; i < count; i += m.threads) {
        float mine = best - all[i].x;
        int before = 0;
        for (int j = 0; j < count; j++) {
            float other = best - all[j].x;
            before += other < mine || (other == mine && j < i);
        }
        if (before == k - 1)
            room->reach = mine;
    }
    BARRIER(m);
    reach = room->reach;
    BARRIER(m); /* kept: the room's next use waits as well */
    return reach;
}

/* Which tokens of a row are near the largest logit. */
typedef struct {
    DEVICE const float *logits;
    DEVICE const uint32_t *bitmask; /* NULL: none */
    DEVICE const best_of *all;      /* of its stretches */
    float best, reach;              /* reach: a finite distance */
    int n, lost;                    /* lost: of so many first tokens those that are not near count as well */
} near_tokens;

FN int is_near(THREAD const near_tokens *t, int i) {
    return t->best - allowed(t->logits, t->bitmask, i) <= t->reach;
}

/* Counts this thread's share of the tokens from `at` on; put: also leaves their logits and ids at these places of the second buffer. */
FN int64_t count_near(self m, THREAD const set *s, THREAD const near_tokens *t, int64_t at, int put) {
    for (int stretch = m.wave; stretch < stretches_of(t->n); stretch += m.waves) {
        int first = stretch * BEST_CHUNK, end = first + BEST_CHUNK < t->n ? first + BEST_CHUNK : t->n;
        for (int i = first + m.lane; t->best - t->all[stretch].x <= t->reach && i < end; i += WAVE) {
            if (!is_near(t, i))
                continue;
            if (put) {
                s->own_x[1][at] = t->logits[i];
                s->own_ids[1][at] = i;
            }
            at++;
        }
    }
    for (int i = m.thread; i < t->lost; i += m.threads) {
        if (is_near(t, i))
            continue;
        if (put) {
            s->own_x[1][at] = allowed(t->logits, t->bitmask, i);
            s->own_ids[1][at] = i;
        }
        at++;
    }
    return at;
}

/* Makes the tokens within a distance of the largest logit the candidates, in order of their ids. An infinite one is that of k tokens
 * of which some have no weight: then all with one are taken, and enough of the first ones without. 0: there are too many. */
FN int gather_near(self m, THREAD set *s, CONSTANT gpu_call *c, int row, DEVICE const uint32_t *bitmask, float best,
                   float reach, int k) {
    near_tokens t = {ROW(const float, c->v + 1, row), bitmask, best_at(c, row, s->n), best, reach, s->n, 0};
    int64_t count, at;
    if (reach == INFINITY) {
        t.reach = MOST;
        count = sum_of_all(m, s, count_near(m, s, &t, 0, 0));
        t.lost = s->n - k > count ? k + (int)count : s->n; /* of these k have no weight at least */
    }
    at = sum_before(m, s, count_near(m, s, &t, 0, 0), &count);
    if (count > GATHER_MOST)
        return 0;
    count_near(m, s, &t, at, 1);
    BARRIER(m);
    for (int i = m.thread; i < count; i += m.threads) {
        int32_t id = s->own_ids[1][i];
        int place = 0;
        for (int j = 0; j < count; j++)
            place += s->own_ids[1][j] < id;
        s->own_ids[0][place] = id;
        s->own_x[0][place] = s->own_x[1][i];
    }
    s->turn = 0;
    took_own(m, s, (int)count);
    s->best = best;
    s->all_lost = 0;
    return 1;
}

/* Makes a superset of what the first stage of an unedited row keeps the candidates; 0: that takes all logits. */
FN int gather_first(self m, THREAD set *s, CONSTANT gpu_call *c, int row, THREAD const row_facts *r,
                    DEVICE const uint32_t *bitmask) {
    hal_stage first = stage_of(r->params, 0);
    float number = first.numbers[0], reach = -1, best = row_best(m, c, row, s->n, s->room);
    int k = 0;
    if (best == INFINITY || best == -INFINITY)
        return 0;
    if (first.stage == STAGE_top_k && number > 0 && number < (float)s->n) {
        k = (int)number;
        reach = reach_of(m, c, row, s->n, best, k, s->room);
    } else if (first.stage == STAGE_min_p && number > 0)
        reach = fmaxf(-(float)exact_log((double)number), 0);
    return reach >= 0 && gather_near(m, s, c, row, bitmask, best, reach, k);
}

KERNEL(sample, SAMPLE_THREADS) {
    int n = c->v[1].shape[1], rows = rows_of(c, c->v);
    for (int row = m.group[0]; row < rows; row += SAMPLE_GROUPS) {
        row_facts r = facts_of(c, row);
        set s = set_of(c, m, m.group[0], n);
        DEVICE const uint32_t *bitmask = bitmask_of(c, row);
        float nll_bits = 0;
        int token = NO_TOKEN;
        if (is_greedy(r.params) && !r.edits)
            token = greedy_token(m, c, row, n);
        else if ((!r.edits && gather_first(m, &s, c, row, &r, bitmask)) ||
                 fill_set(m, &s, ROW(const float, c->v + 1, row), r.edits ? NULL : bitmask))
            token = sample_row(m, &s, &r, r.edits ? c->v[7].shape[1] : 0, bitmask, &nll_bits);
        BARRIER(m); /* kept: only an edited row writes what others may still read of this one before it waits itself */
        if (m.thread)
            continue;
        if (token == BAD_INDEX)
            fault(c);
        ROW(int32_t, c->v, row)[0] = token == BAD_INDEX ? 0 : token;
        if (c->mode == SAMPLE_MASKED)
            ROW(int32_t, c->v, row)[1] = (int32_t)f32_bits(nll_bits);
    }
}

/* --- logprobs: logprobs_best as sample_best; logprobs_parts: sums of parts of a row; logprobs: a row's report, by one group */

FN int is_wanted(CONSTANT gpu_call *c, int row) {
    return c->n_in == 2 || is_reported(ROW(const char, c->v + 3, row));
}

/* Weight of the candidates in a part of a row, and the number of those that rank before the reported token. */
typedef struct {
    int64_t weight, above;
} part_sums;

FN DEVICE part_sums *part_at(CONSTANT gpu_call *c, int row, int n) {
    return (DEVICE part_sums *)(best_at(c, c->v[0].shape[0], n)) +
           (int64_t)((n + REPORT_CHUNK - 1) / REPORT_CHUNK) * row;
}

KERNEL(logprobs_best, BEST_THREADS) {
    int row = m.group[1];
    if (row < rows_of(c, c->v) && is_wanted(c, row))
        find_best(m, c, row, NULL);
}

KERNEL(logprobs_parts, GROUP) {
    int row = m.group[1], n = c->v[1].shape[1], first = m.group[0] * REPORT_CHUNK;
    int end = first + REPORT_CHUNK < n ? first + REPORT_CHUNK : n;
    int64_t sum = 0, above = 0;
    set s = {NULL, NULL, n, 0, 0, 0};
    float mine;
    if (row >= rows_of(c, c->v) || !is_wanted(c, row) || !inside(i32_at(c->v + 2, row), n))
        return;
    s.room = (LOCAL sample_room *)m.local;
    s.x = ROW(const float, c->v + 1, row);
    s.best = row_best(m, c, row, n, s.room);
    if (s.best == INFINITY || s.best == -INFINITY)
        return;
    mine = distance(&s, i32_at(c->v + 2, row));
    for (int i = first + m.thread; i < end; i += m.threads) {
        sum += weight(&s, i);
        above += distance(&s, i) < mine;
    }
    sum = sum_of_all(m, &s, sum);
    above = sum_of_all(m, &s, above);
    if (m.thread == 0) {
        DEVICE part_sums *to = part_at(c, row, n) + m.group[0];
        to->weight = sum;
        to->above = above;
    }
}

FN void report_row(self m, THREAD set *s, CONSTANT gpu_call *c, int row, int id, int k) {
    DEVICE float *out = ROW(float, c->v, row);
    DEVICE const float *logits = ROW(const float, c->v + 1, row);
    DEVICE const part_sums *parts = part_at(c, row, s->n);
    float best = row_best(m, c, row, s->n, s->room), reach;
    int64_t sum = 0, above = 0;
    double log_total;
    int n = s->n;
    if (best == INFINITY || best == -INFINITY || id == NO_TOKEN) {
        for (int i = m.thread; i < 2 + 2 * k; i += m.threads)
            out[i] = f32_nan();
        return;
    }
    for (int i = m.thread; i < (n + REPORT_CHUNK - 1) / REPORT_CHUNK; i += m.threads) {
        sum += parts[i].weight;
        above += parts[i].above;
    }
    log_total = exact_log((double)sum_of_all(m, s, sum)) - WEIGHT_BITS * LN2;
    above = sum_of_all(m, s, above);
    reach = reach_of(m, c, row, n, best, k, s->room);
    if (!(reach >= 0 && gather_near(m, s, c, row, NULL, best, reach, k)))
        fill_set(m, s, logits, NULL);
    keep_count(m, s, k);
    for (int i = m.thread; i < s->n; i += m.threads) {
        int rank = rank_in(s, i);
        out[2 + rank] = (float)(-(double)distance(s, i) - log_total);
        out[2 + k + rank] = (float)id_of(s, i);
    }
    if (m.thread)
        return;
    out[0] = (float)(-(double)(best - logits[id]) - log_total);
    out[1] = (float)above;
}

KERNEL(logprobs, SAMPLE_THREADS) {
    int n = c->v[1].shape[1], rows = rows_of(c, c->v), k = ((CONSTANT arg_logprobs *)c->arg)->k;
    for (int row = m.group[0]; row < rows; row += SAMPLE_GROUPS) {
        int id = i32_at(c->v + 2, row), wanted = is_wanted(c, row);
        set s = set_of(c, m, m.group[0], n);
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
