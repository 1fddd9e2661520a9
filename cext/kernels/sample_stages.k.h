/* sample_stages.k.h: the stages of a sampling chain, one function each, on the candidates of one row; all threads of the group
 * call them. runtime/sampling/chain.py defines each stage and names its source; the sets here are bit-identical.
 */
#ifndef SATCHEL_SAMPLE_STAGES_K_H
#define SATCHEL_SAMPLE_STAGES_K_H

#include "sample_set.k.h"

enum { MIROSTAT_TOP = 100 };

/* Inputs of a row. ring: the slot's tokens by position, NULL if slot or position is out of range. */
typedef struct {
    hal_sampling p;
    DEVICE const int32_t *ring, *edits; /* edits: (token, bits of a float32) pairs */
    int width, vocabulary, pos;
} row_facts;

typedef struct {
    double total, log_total; /* sum of weights; its logarithm relative to the largest weight */
} shares;

FN shares shares_of(self m, THREAD const set *s) {
    shares t;
    t.total = total_weight(m, s);
    t.log_total = exact_log(t.total) - WEIGHT_BITS * LN2;
    return t;
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

FN double product_of(THREAD const set *s, int i) {
    int64_t w = weight(s, i);
    return (double)w * (w ? -(double)distance(s, i) : 0.0);
}

FN double entropy(self m, THREAD const set *s, shares t) {
    double sum;
    LANES_SUM(m, s, product_of(s, i), sum);
    return t.log_total - sum / t.total;
}

/* x + amount, never NaN or +inf. */
FN float lifted(float x, float amount) {
    x += amount;
    return x < MOST ? x : MOST;
}

/* Whether `good` holds in all threads. */
FN int all_say(self m, THREAD const set *s, int good) {
    int64_t bad = group_sum_i64(m, !good, s->room->sums);
    return bad == 0;
}

/* Adds n edits (logit biases) to the logits, those of one token in order; 0 if a token is out of range. */
FN int add_edits(self m, THREAD set *s, DEVICE const int32_t *edits, int n, int vocabulary) {
    DEVICE float *x;
    int good = 1;
    if (n == 0)
        return 1;
    x = writable(m, s);
    for (int i = m.thread; i < n; i += m.threads) {
        int token = edits[2 * i], at, before = 0;
        float amount = f32_from_bits((uint32_t)edits[2 * i + 1]);
        if (!inside(token, vocabulary) || amount != amount) {
            good = 0;
            continue;
        }
        for (int j = 0; j < i && !before; j++)
            before = edits[2 * j] == token;
        at = before ? -1 : place_of(s, token);
        for (int j = i; j < n && at >= 0; j++)
            if (edits[2 * j] == token)
                x[at] = lifted(x[at], f32_from_bits((uint32_t)edits[2 * j + 1]));
    }
    return all_say(m, s, good);
}

FN int stage_dry(self m, THREAD set *s, THREAD const row_facts *r) {
    int good = add_edits(m, s, r->edits + 2 * r->p.biases, r->edits ? r->p.dry_penalties : 0, r->vocabulary);
    changed(m, s);
    return good;
}

FN float penalized(float x, int count, THREAD const hal_sampling *p) {
    x = x > 0 ? x / p->repeat_penalty : x * p->repeat_penalty;
    x = x - (float)count * p->frequency_penalty - p->presence_penalty;
    return x < MOST ? x : MOST;
}

FN int stage_penalties(self m, THREAD set *s, THREAD const row_facts *r) {
    int64_t reach = (int64_t)r->pos + 1 < r->p.repeat_last_n ? (int64_t)r->pos + 1 : r->p.repeat_last_n;
    int n = reach < 0 ? 0 : reach > r->width ? r->width : (int)reach; /* older tokens are overwritten */
    int good = 1;
    DEVICE float *x;
    if (!r->ring)
        return 0;
    x = writable(m, s);
    for (int i = m.thread; i < n; i += m.threads) {
        int token = r->ring[(r->pos - i) % r->width], count = 0, before = 0, at;
        good = good && inside(token, r->vocabulary);
        for (int j = 0; j < n && !before; j++) {
            int same = r->ring[(r->pos - j) % r->width] == token;
            before = same && j < i;
            count += same;
        }
        if (good && !before && (at = place_of(s, token)) >= 0)
            x[at] = penalized(x[at], count, &r->p);
    }
    good = all_say(m, s, good);
    changed(m, s);
    return good;
}

FN double square(double x) {
    return x * x;
}

FN void stage_top_n_sigma(self m, THREAD set *s, THREAD const row_facts *r) {
    double sum, count, mean, least;
    int64_t real = 0;
    if (s->all_lost || r->p.top_n_sigma < 0)
        return;
    for (int i = m.thread; i < s->n; i += m.threads)
        real += s->x[i] > -INFINITY;
    count = (double)group_sum_i64(m, real, s->room->sums);
    LANES_SUM(m, s, s->x[i] > -INFINITY ? (double)s->x[i] : 0.0, sum);
    mean = sum / count;
    LANES_SUM(m, s, s->x[i] > -INFINITY ? square((double)s->x[i] - mean) : 0.0, sum);
    least = (double)s->best - (double)r->p.top_n_sigma * sqrt(sum / count);
    KEEP(m, s, (double)s->x[i] >= least);
}

FN void stage_typical(self m, THREAD set *s, THREAD const row_facts *r) {
    shares t = shares_of(m, s);
    double h = entropy(m, s, t);
    for (int i = m.thread; i < s->n; i += m.threads)
        s->keys[i] = (float)fabs((t.log_total + (double)distance(s, i)) - h);
    BARRIER(m); /* kept: cross() also has a barrier before it reads other threads' keys */
    keep_first(m, s, s->keys, cross(m, s, s->keys, (double)r->p.typical_p * t.total, 1, 0));
    changed(m, s); /* the largest logit may be removed */
}

FN void stage_top_p(self m, THREAD set *s, THREAD const row_facts *r) {
    keep_first(m, s, NULL, cross(m, s, NULL, (double)r->p.top_p * total_weight(m, s), 0, 0));
}

FN void stage_min_p(self m, THREAD set *s, THREAD const row_facts *r) {
    ranked edge = {0, INT32_MAX};
    float most = r->p.min_p > 0 ? -(float)exact_log((double)r->p.min_p) : INFINITY;
    edge.key = f32_bits(most > 0 ? most : 0);
    if (r->p.min_p > 0)
        keep_first(m, s, NULL, edge);
}

FN void stage_xtc(self m, THREAD set *s, THREAD const row_facts *r) {
    double least = (double)r->p.xtc_threshold * total_weight(m, s);
    double drawn = uniform(r->p.seed ^ 0x9FB21C651E98DF25u, r->pos);
    int64_t count = 0;
    float far = -1, place = -1;
    int last;
    if (r->p.xtc_threshold > 0.5f || drawn >= (double)r->p.xtc_probability)
        return;
    for (int i = m.thread; i < s->n; i += m.threads)
        if ((double)weight(s, i) >= least) {
            count++;
            far = fmaxf(far, distance(s, i));
        }
    if (group_sum_i64(m, count, s->room->sums) < 2)
        return;
    far = group_most(m, far, s->room->floats);
    for (int i = m.thread; i < s->n; i += m.threads)
        if ((double)weight(s, i) >= least && distance(s, i) == far)
            place = (float)i;
    last = (int)group_most(m, place, s->room->floats); /* a float is exact up to 2^24; vocabularies are smaller */
    KEEP(m, s, i == last || !((double)weight(s, i) >= least));
    changed(m, s);
}

FN void stage_temperature(self m, THREAD set *s, THREAD const row_facts *r) {
    double by = (double)r->p.temperature, spread = (double)r->p.dynatemp_range;
    DEVICE float *x;
    if (spread > 0 && s->n > 1) {
        double low = by - spread > 0 ? by - spread : 0, high = by + spread;
        double share = entropy(m, s, shares_of(m, s)) / exact_log((double)s->n);
        by = low + (high - low) * exact_power(share > 0 ? share : 0, (double)r->p.dynatemp_exponent);
    }
    if (by <= 0) {
        keep_count(m, s, 1);
        return;
    }
    x = s->own_x[s->turn];
    for (int i = m.thread; i < s->n; i += m.threads) {
        float d = distance(s, i);
        s->own_ids[s->turn][i] = id_of(s, i);
        x[i] = d == 0 ? 0 : -d / (float)by;
    }
    took_own(m, s, s->n);
    s->best = 0;
    s->all_lost = 0;
}

/* Mirostat 1: the k whose top-k sampling has an expected negative log2-probability of mu bits, from the distances of the n
 * first-ranked candidates in order. */
FN double mirostat_count(LOCAL const float *d, int n, THREAD const set *s, THREAD const row_facts *r) {
    double above = 0, up = 0, slope, eps, k, bottom;
    for (int i = 0; i + 1 < n; i++) {
        double t = exact_log(((double)i + 2) / ((double)i + 1));
        double b = d[i + 1] < INFINITY ? (double)d[i + 1] - (double)d[i] : 0;
        above += t * b;
        up += t * t;
    }
    slope = up > 0 ? above / up : 1;
    eps = slope - 1;
    bottom = 1 - exact_power((double)r->vocabulary, -eps);
    k = bottom != 0 ? eps * exact_exp((double)r->p.mirostat_mu * LN2) / bottom : 1;
    k = slope > 0 ? exact_power(k, 1 / slope) : (double)s->n;
    k = k > 1 ? k : 1;
    return k < (double)s->n ? k : (double)s->n;
}

/* Number of candidates that rank before this one. */
FN int rank_in(THREAD const set *s, int at) {
    float d = distance(s, at);
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += distance(s, i) < d || (distance(s, i) == d && i < at);
    return n;
}

FN void stage_mirostat_1(self m, THREAD set *s, THREAD const row_facts *r) {
    LOCAL float *first = (LOCAL float *)(s->room + 1);
    set top = *s;
    double k;
    keep_count(m, &top, MIROSTAT_TOP);
    for (int i = m.thread; i < top.n; i += m.threads)
        first[rank_in(&top, i)] = distance(&top, i);
    BARRIER(m);
    k = mirostat_count(first, top.n, s, r);
    BARRIER(m); /* kept: with today's stages, another barrier comes before `first` is written again */
    keep_count(m, s, (int)k);
}

FN void stage_mirostat_2(self m, THREAD set *s, THREAD const row_facts *r) {
    shares t = shares_of(m, s);
    double most = (double)r->p.mirostat_mu * LN2;
    int64_t some = 0;
    for (int i = m.thread; i < s->n; i += m.threads)
        some += t.log_total + (double)distance(s, i) <= most;
    if (group_sum_i64(m, some, s->room->sums) == 0)
        keep_count(m, s, 1);
    else
        KEEP(m, s, t.log_total + (double)distance(s, i) <= most);
}

/* Runs one stage; 0 if the history or an edit has a token out of range. */
FN int run_stage(self m, uint8_t stage, THREAD set *s, THREAD const row_facts *r) {
    switch (stage) {
    case HAL_STAGE_PENALTIES:
        return stage_penalties(m, s, r);
    case HAL_STAGE_DRY:
        return stage_dry(m, s, r);
    case HAL_STAGE_TOP_K:
        if (r->p.top_k > 0)
            keep_count(m, s, r->p.top_k);
        return 1;
#define STAGE(NAME, name)                                                                                              \
    case HAL_STAGE_##NAME:                                                                                             \
        stage_##name(m, s, r);                                                                                         \
        return 1;
        STAGE(TOP_N_SIGMA, top_n_sigma)
        STAGE(TYPICAL, typical)
        STAGE(TOP_P, top_p)
        STAGE(MIN_P, min_p)
        STAGE(XTC, xtc)
        STAGE(TEMPERATURE, temperature)
        STAGE(MIROSTAT_1, mirostat_1)
        STAGE(MIROSTAT_2, mirostat_2)
#undef STAGE
    }
    return 0;
}

#endif
