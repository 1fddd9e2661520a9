/* sample_set.k.h: the candidate tokens of one row between the stages of its sampling chain. runtime/sampling/chain.py defines
 * them. All threads of a group hold the same `set`, and every function here is collective: all threads call it.
 *
 * A set is logits x[n] with token ids[n] in ascending order (NULL: id = index). Candidates rank by distance from the largest
 * logit, equal ones by index. Weights e^-distance are integers in units of 2^-40, so sums are exact in any order. Filters write
 * the kept candidates to the other of two buffers of scratch. Needs doubles and 64-bit sums in local memory.
 */
#ifndef SATCHEL_SAMPLE_SET_K_H
#define SATCHEL_SAMPLE_SET_K_H

#include "modes.h"
#include "port.h"

enum { DIGITS = 256 };

typedef struct {
    int64_t sums[SAMPLE_THREADS / 8], before;
    uint64_t weights[DIGITS];
    uint32_t counts[DIGITS];
    uint64_t lanes[8]; /* bits of doubles */
    float floats[SAMPLE_THREADS / 8], reach;
    int32_t at;
} sample_room;

typedef struct {
    DEVICE const float *x;
    DEVICE const int32_t *ids;
    /* all_lost: every candidate is -inf, so all rank and weigh the same; turn: the buffer to write next */
    int n, all_lost, turn;
    float best;
    DEVICE float *own_x[2], *keys;
    DEVICE int32_t *own_ids[2];
    LOCAL sample_room *room;
} set;
typedef int set_index;

#include "sample_ranks.k.h"

FN set set_of(CONSTANT gpu_call *c, self m, int group, int n) {
    DEVICE char *own = (DEVICE char *)(uintptr_t)c->scratch + (int64_t)group * n * SAMPLE_BYTES;
    set s = {NULL, NULL, n, 0, 0, 0};
    s.own_x[0] = (DEVICE float *)own;
    s.own_x[1] = s.own_x[0] + n;
    s.keys = s.own_x[1] + n;
    s.own_ids[0] = (DEVICE int32_t *)(s.keys + n);
    s.own_ids[1] = s.own_ids[0] + n;
    s.room = (LOCAL sample_room *)m.local;
    return s;
}

/* e^-distance in units of 2^-40, as exact.py's weights(). */
FN int64_t weight(THREAD const set *s, int at) {
    const float turn = 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */
    float d, n, r, q;
    double y;
    if (s->all_lost)
        return (int64_t)1 << WEIGHT_BITS;
    d = s->x[at] - s->best;
    d = d < -40.0f ? -40.0f : d;
    n = (d * 1.44269504f + turn) - turn;
    r = (d - n * 0.693359375f) - n * -2.12194440e-4f;
    q = (float)(1.0 / 5040);
    q = q * r + (float)(1.0 / 720);
    q = q * r + (float)(1.0 / 120);
    q = q * r + (float)(1.0 / 24);
    q = q * r + (float)(1.0 / 6);
    q = q * r + (float)(1.0 / 2);
    q = q * r + 1.0f;
    q = (q * r + 1.0f) * f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
    y = (double)q * 1099511627776.0 + 4503599627370496.0; /* q * 2^40 + 2^52: the integer is in the low bits */
    return (int64_t)(f64_bits(y) & 0xFFFFFFFFFFFFF);
}

FN double total_weight(self m, THREAD const set *s) {
    int64_t sum = 0;
    for (int i = m.thread; i < s->n; i += m.threads)
        sum += weight(s, i);
    return (double)group_sum_i64(m, sum, s->room->sums);
}

/* Exclusive prefix sum of x over the group's threads; *total: the sum over all threads. */
FN int64_t sum_before(self m, THREAD const set *s, int64_t x, THREAD int64_t *total) {
    int64_t sum = x, before = 0, all = 0;
    for (int o = 1; o < WAVE; o *= 2) {
        int64_t other = take_i64(m, sum, m.lane >= o ? m.lane - o : m.lane);
        sum += m.lane >= o ? other : 0;
    }
    if (m.lane == WAVE - 1)
        s->room->sums[m.wave] = sum;
    BARRIER(m);
    for (int i = 0; i < m.waves; i++) {
        before += i < m.wave ? s->room->sums[i] : 0;
        all += s->room->sums[i];
    }
    BARRIER(m); /* kept: so that sums may be used again at once; today's callers write the same again, or wait */
    *total = all;
    return before + sum - x;
}

/* The contiguous range of candidates of this thread, own_first .. own_end - 1, for operations that keep the order. */
FN int own_first(self m, THREAD const set *s) {
    return (int)((int64_t)s->n * m.thread / m.threads);
}

FN int own_end(self m, THREAD const set *s) {
    return (int)((int64_t)s->n * (m.thread + 1) / m.threads);
}

/* Stream compaction: keeps the candidates i for which the condition holds, in order. */
#define KEEP(m, s, condition)                                                                                          \
    do {                                                                                                               \
        int64_t kept = 0, left;                                                                                        \
        DEVICE float *to_x = (s)->own_x[(s)->turn];                                                                    \
        DEVICE int32_t *to_ids = (s)->own_ids[(s)->turn];                                                              \
        for (int i = own_first(m, s); i < own_end(m, s); i++)                                                          \
            kept += (condition) ? 1 : 0;                                                                               \
        kept = sum_before(m, s, kept, &left);                                                                          \
        for (int i = own_first(m, s); i < own_end(m, s); i++)                                                          \
            if (condition) {                                                                                           \
                to_ids[kept] = id_of(s, i);                                                                            \
                to_x[kept++] = (s)->x[i];                                                                              \
            }                                                                                                          \
        took_own(m, s, (int)left);                                                                                     \
    } while (0)

/* Makes the first n logits and ids of the buffer that was just written the candidates. */
FN void took_own(self m, THREAD set *s, int n) {
    BARRIER(m);
    s->x = s->own_x[s->turn];
    s->ids = s->own_ids[s->turn];
    s->n = n;
    s->turn ^= 1;
}

/* The candidates' logits in memory that any thread may write; call changed() afterwards. */
FN DEVICE float *writable(self m, THREAD set *s) {
    DEVICE float *to = s->own_x[s->turn];
    for (int i = m.thread; i < s->n; i += m.threads) {
        to[i] = s->x[i];
        s->own_ids[s->turn][i] = id_of(s, i);
    }
    took_own(m, s, s->n);
    return to;
}

FN void changed(self m, THREAD set *s) {
    float best = -INFINITY;
    BARRIER(m); /* kept: any thread may have changed a number; today's callers have waited by then */
    for (int i = m.thread; i < s->n; i += m.threads)
        best = fmaxf(best, s->x[i]);
    s->best = group_most(m, best, s->room->floats);
    s->all_lost = s->best == -INFINITY;
}

/* A buffer for new logits of all candidates, of which each thread writes its own; call took_all() afterwards. */
FN DEVICE float *room_for_all(self m, THREAD set *s) {
    for (int i = m.thread; i < s->n; i += m.threads)
        s->own_ids[s->turn][i] = id_of(s, i);
    return s->own_x[s->turn];
}

FN void took_all(self m, THREAD set *s) {
    took_own(m, s, s->n);
}

/* Sum, maximum and largest index over all threads. */
FN int64_t sum_of_all(self m, THREAD const set *s, int64_t x) {
    return group_sum_i64(m, x, s->room->sums);
}

FN float most_of_all(self m, THREAD const set *s, float x) {
    return group_most(m, x, s->room->floats);
}

FN int last_of_all(self m, THREAD const set *s, int at) {
    return (int)group_most(m, (float)at, s->room->floats); /* a float is exact up to 2^24; vocabularies are smaller */
}

/* sum = the sum of `number` over i = 0 .. n - 1 in doubles: eight partial sums, i % 8, each in order, then their sum in order.
 * The definition fixes this order. */
#define LANES_SUM(m, s, number, sum)                                                                                   \
    do {                                                                                                               \
        BARRIER(m); /* kept: of this and the last one, today's uses need one */                                        \
        if (m.thread < 8) {                                                                                            \
            double lane = 0;                                                                                           \
            for (int i = m.thread; i < (s)->n; i += 8)                                                                 \
                lane += (number);                                                                                      \
            (s)->room->lanes[m.thread] = f64_bits(lane);                                                               \
        }                                                                                                              \
        BARRIER(m);                                                                                                    \
        (sum) = 0;                                                                                                     \
        for (int j = 0; j < 8; j++)                                                                                    \
            (sum) += f64_from_bits((s)->room->lanes[j]);                                                               \
        BARRIER(m); /* kept: see the first */                                                                          \
    } while (0)

/* --- ranking */

FN uint32_t key_at(THREAD const set *s, DEVICE const float *keys, int i) {
    return f32_bits(keys ? keys[i] : distance(s, i));
}

/* Radix select: the digit whose cumulative weight reaches the goal, else the last one that occurs. Run by one thread. */
FN void choose_digit(LOCAL sample_room *room, double goal, int beyond) {
    int64_t before = room->before, last = before;
    int d = 0;
    room->at = 0;
    for (; d < DIGITS; d++) {
        if (!room->counts[d])
            continue;
        room->at = d;
        last = before;
        before += (int64_t)room->weights[d];
        if (reached(before, goal, beyond))
            break;
    }
    room->before = last;
}

/* Radix select: extends `key` by the digit (8 bits at `shift`) at which the cumulative weight reaches the goal, among
 * candidates whose higher digits equal key's. */
FN uint32_t cross_digit(self m, THREAD const set *s, DEVICE const float *keys, uint32_t key, int shift, double goal,
                        int beyond, int unit) {
    LOCAL sample_room *room = s->room;
    for (int i = m.thread; i < DIGITS; i += m.threads) {
        room->weights[i] = 0;
        room->counts[i] = 0;
    }
    BARRIER(m);
    for (int i = m.thread; i < s->n; i += m.threads) {
        uint32_t k = key_at(s, keys, i), digit = k >> shift & (DIGITS - 1);
        if (((uint64_t)(k ^ key) >> (shift + 8)) == 0) {
            ADD_LOCAL(&room->weights[digit], (uint64_t)(unit ? 1 : weight(s, i)));
            ADD_LOCAL(&room->counts[digit], 1u);
        }
    }
    BARRIER(m);
    if (m.thread == 0)
        choose_digit(room, goal, beyond);
    BARRIER(m);
    return key | (uint32_t)room->at << shift; /* no thread writes room->at before a later barrier */
}

/* Weight of the candidates with this key in this thread's range. */
FN int64_t weight_of_equals(self m, THREAD const set *s, DEVICE const float *keys, uint32_t key, int unit) {
    int64_t sum = 0;
    for (int i = own_first(m, s); i < own_end(m, s); i++)
        sum += key_at(s, keys, i) != key ? 0 : unit ? 1 : weight(s, i);
    return sum;
}

/* Index of the candidate with this key at which the cumulative weight, `before` plus theirs in order of index, reaches the
 * goal. One of them must reach it. */
FN int equal_at(self m, THREAD const set *s, DEVICE const float *keys, uint32_t key, int64_t before, double goal,
                int beyond, int unit) {
    int64_t mine = weight_of_equals(m, s, keys, key, unit), all;
    before += sum_before(m, s, mine, &all);
    if (!reached(before, goal, beyond) && reached(before + mine, goal, beyond))
        for (int i = own_first(m, s); i < own_end(m, s); i++) {
            before += key_at(s, keys, i) != key ? 0 : unit ? 1 : weight(s, i);
            if (reached(before, goal, beyond)) {
                s->room->at = i;
                break;
            }
        }
    BARRIER(m);
    return s->room->at;
}

/* The candidate at which the cumulative weight in order of rank reaches the goal (beyond 1: exceeds it); the last-ranked one if
 * none does. keys: sort keys, NULL for distances; unit 1: each candidate weighs 1. */
FN ranked cross(self m, THREAD const set *s, DEVICE const float *keys, double goal, int beyond, int unit) {
    ranked edge = {0, 0};
    int64_t before, all;
    BARRIER(m); /* kept: other threads may still read the room; today's callers need one of this and the last */
    if (m.thread == 0)
        s->room->before = 0;
    for (int shift = 24; shift >= 0; shift -= 8)
        edge.key = cross_digit(m, s, keys, edge.key, shift, goal, beyond, unit);
    before = s->room->before;
    sum_before(m, s, weight_of_equals(m, s, keys, edge.key, unit), &all);
    /* take the first or the last of the equal keys */
    if (reached(before, goal, beyond) || !reached(before + all, goal, beyond)) {
        int first = reached(before, goal, beyond);
        sum_before(m, s, weight_of_equals(m, s, keys, edge.key, 1), &all);
        edge.at = equal_at(m, s, keys, edge.key, 0, first ? 1.0 : (double)all, 0, 1);
    } else
        edge.at = equal_at(m, s, keys, edge.key, before, goal, beyond, unit);
    BARRIER(m); /* kept: see the first */
    return edge;
}

/* Keeps the candidates that rank up to `edge`, inclusive. */
FN void keep_first(self m, THREAD set *s, DEVICE const float *keys, ranked edge) {
    KEEP(m, s, key_at(s, keys, i) < edge.key || (key_at(s, keys, i) == edge.key && i <= edge.at));
}

FN void keep_count(self m, THREAD set *s, int k) {
    if (k < s->n)
        keep_first(m, s, NULL, cross(m, s, NULL, (double)k, 0, 1));
}

/* Number of candidates that rank before this one. */
FN int rank_in(THREAD const set *s, int at) {
    float d = distance(s, at);
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += distance(s, i) < d || (distance(s, i) == d && i < at);
    return n;
}

/* Distances of the n first-ranked candidates, in order. */
FN LOCAL const float *first_distances(self m, THREAD const set *s, int n) {
    LOCAL float *first = (LOCAL float *)(s->room + 1);
    set top = *s;
    keep_count(m, &top, n);
    for (int i = m.thread; i < top.n; i += m.threads)
        first[rank_in(&top, i)] = distance(&top, i);
    BARRIER(m);
    return first;
}

#endif
