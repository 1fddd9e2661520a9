/* sample_stages.h: the stages of a sampling chain, one function each, on the candidate set of one row.
 * runtime/sampling/chain.py defines each stage and names its source; the sets here are bit-identical. The caller owns the row
 * and its set.
 */
#ifndef SATCHEL_SAMPLE_STAGES_H
#define SATCHEL_SAMPLE_STAGES_H

#include "sample_set.h"

/* Inputs of a row. ring: the slot's tokens by position, NULL if slot or position is out of range. */
typedef struct {
    hal_sampling p;
    const int32_t *ring, *dry_penalties; /* (token, bits of a float32) pairs */
    int64_t width, vocabulary;
    int32_t pos;
    ranked *history, *sorted; /* `width` entries each */
} row_facts;

typedef struct {
    double total, log_total; /* sum of weights; its logarithm relative to the largest weight */
} shares;

static inline shares shares_of(set *s) {
    double total = total_weight(s);
    return (shares){total, exact_log(total) - WEIGHT_BITS * LN2};
}

static inline double add_lanes(const double *lane) {
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

static inline double entropy(const set *s, shares t) {
    double lane[8] = {0};
    for (int64_t i = 0; i < s->n; i++) {
        float d = distance(s, i);
        int64_t w = s->weights[i];
        lane[i & 7] += (double)w * (w ? -(double)d : 0.0);
    }
    return t.log_total - add_lanes(lane) / t.total;
}

/* x + amount, never NaN or +inf. */
static inline float lifted(float x, float amount) {
    x += amount;
    return x < MOST ? x : MOST;
}

/* Adds n edits (logit biases) to the logits; 0 if a token is out of range. */
static inline int add_edits(set *s, const int32_t *edits, int32_t n, int64_t vocabulary) {
    float *x = n ? writable(s) : NULL;
    for (int32_t i = 0; i < n; i++) {
        int64_t at;
        float amount;
        memcpy(&amount, edits + 2 * i + 1, sizeof amount);
        if (edits[2 * i] < 0 || edits[2 * i] >= vocabulary || amount != amount)
            return 0;
        if ((at = place_of(s, edits[2 * i])) >= 0)
            x[at] = lifted(x[at], amount);
    }
    return 1;
}

static inline int stage_penalties(set *s, const row_facts *r) {
    int64_t n = (int64_t)r->pos + 1 < r->p.repeat_last_n ? (int64_t)r->pos + 1 : r->p.repeat_last_n, same, at;
    const ranked *seen;
    float *x;
    n = n < 0 ? 0 : n > r->width ? r->width : n; /* older tokens are overwritten */
    for (int64_t i = 0; i < n; i++) {
        int32_t token = r->ring[(r->pos - i) % r->width];
        if (token < 0 || token >= r->vocabulary)
            return 0;
        r->history[i] = (ranked){(uint32_t)token, token};
    }
    seen = sort_ranked(r->history, r->sorted, n);
    x = writable(s);
    for (int64_t i = 0; i < n; i += same) {
        for (same = 1; i + same < n && seen[i + same].at == seen[i].at; same++)
            continue;
        if ((at = place_of(s, seen[i].at)) < 0)
            continue;
        x[at] = x[at] > 0 ? x[at] / r->p.repeat_penalty : x[at] * r->p.repeat_penalty;
        x[at] = x[at] - (float)same * r->p.frequency_penalty - r->p.presence_penalty;
        x[at] = x[at] < MOST ? x[at] : MOST;
    }
    find_best(s);
    return 1;
}

static inline void keep_least(set *s, double least) {
    int64_t m = 0;
    for (int64_t i = 0; i < s->n; i++)
        if ((double)s->x[i] >= least) {
            s->own_ids[m] = id_of(s, i);
            s->own_x[m++] = s->x[i];
        }
    took_own(s, m);
}

static inline void stage_top_n_sigma(set *s, const row_facts *r) {
    double sum[8] = {0}, square[8] = {0}, count = 0, mean;
    if (s->all_lost || r->p.top_n_sigma < 0)
        return;
    for (int64_t i = 0; i < s->n; i++)
        if (s->x[i] > -INFINITY) {
            sum[i & 7] += (double)s->x[i];
            count++;
        }
    mean = add_lanes(sum) / count;
    for (int64_t i = 0; i < s->n; i++)
        if (s->x[i] > -INFINITY)
            square[i & 7] += ((double)s->x[i] - mean) * ((double)s->x[i] - mean);
    keep_least(s, (double)s->best - (double)r->p.top_n_sigma * sqrt(add_lanes(square) / count));
}

static inline void keep_count(set *s, int64_t k) {
    if (k >= s->n)
        return;
    if (k > HEAP) {
        keep_first(s, NULL, cross(s, NULL, (double)k, 0, 1));
        return;
    }
    select_first(s, k);
    keep_first(s, NULL, s->list[k - 1]);
}

static inline void stage_top_k(set *s, const row_facts *r) {
    if (r->p.top_k > 0)
        keep_count(s, r->p.top_k);
}

static inline void stage_typical(set *s, const row_facts *r) {
    shares t = shares_of(s);
    double h = entropy(s, t);
    for (int64_t i = 0; i < s->n; i++)
        s->keys[i] = (float)fabs((t.log_total + (double)distance(s, i)) - h);
    keep_first(s, s->keys, cross(s, s->keys, (double)r->p.typical_p * t.total, 1, 0));
}

static inline void stage_top_p(set *s, const row_facts *r) {
    keep_first(s, NULL, cross(s, NULL, (double)r->p.top_p * total_weight(s), 0, 0));
}

static inline void stage_min_p(set *s, const row_facts *r) {
    float most = r->p.min_p > 0 ? -(float)exact_log((double)r->p.min_p) : INFINITY;
    if (r->p.min_p > 0)
        keep_first(s, NULL, (ranked){key_bits(most > 0 ? most : 0), INT32_MAX});
}

static inline void stage_xtc(set *s, const row_facts *r) {
    double least = (double)r->p.xtc_threshold * total_weight(s);
    double drawn = uniform(r->p.seed ^ 0x9FB21C651E98DF25u, r->pos);
    int64_t count = 0, last = -1, m = 0;
    if (r->p.xtc_threshold > 0.5f || drawn >= (double)r->p.xtc_probability)
        return;
    for (int64_t i = 0; i < s->n; i++)
        if ((double)s->weights[i] >= least) {
            count++;
            if (last < 0 || distance(s, i) >= distance(s, last))
                last = i;
        }
    if (count < 2)
        return;
    for (int64_t i = 0; i < s->n; i++)
        if (i == last || !((double)s->weights[i] >= least)) {
            s->keys[m] = s->x[i];
            s->own_ids[m++] = id_of(s, i);
        }
    memcpy(s->own_x, s->keys, sizeof(float) * (size_t)m); /* distances are read from x up to here */
    took_own(s, m);
    find_best(s);
}

static inline void stage_temperature(set *s, const row_facts *r) {
    double by = (double)r->p.temperature, spread = (double)r->p.dynatemp_range;
    float divisor;
    if (spread > 0 && s->n > 1) {
        double low = by - spread > 0 ? by - spread : 0, high = by + spread;
        double share = entropy(s, shares_of(s)) / exact_log((double)s->n);
        by = low + (high - low) * exact_power(share > 0 ? share : 0, (double)r->p.dynatemp_exponent);
    }
    if (by <= 0) {
        keep_count(s, 1);
        return;
    }
    divisor = (float)by;
    for (int64_t i = 0; i < s->n; i++) {
        float d = distance(s, i);
        s->own_x[i] = d == 0 ? 0 : -d / divisor;
    }
    s->x = s->own_x;
    s->weighed = 0;
    s->best = 0;
    s->all_lost = 0;
}

static inline void stage_mirostat_1(set *s, const row_facts *r) {
    int64_t m = s->n < 100 ? s->n : 100;
    double above = 0, up = 0, slope, eps, k, bottom;
    select_first(s, m);
    for (int64_t i = 0; i + 1 < m; i++) {
        double t = exact_log(((double)i + 2) / ((double)i + 1));
        float next = distance(s, s->list[i + 1].at);
        double b = next < INFINITY ? (double)next - (double)distance(s, s->list[i].at) : 0;
        above += t * b;
        up += t * t;
    }
    slope = up > 0 ? above / up : 1;
    eps = slope - 1;
    bottom = 1 - exact_power((double)r->vocabulary, -eps);
    k = bottom != 0 ? eps * exact_exp((double)r->p.mirostat_mu * LN2) / bottom : 1;
    k = slope > 0 ? exact_power(k, 1 / slope) : (double)s->n;
    k = k > 1 ? k : 1;
    keep_count(s, (int64_t)(k < (double)s->n ? k : (double)s->n));
}

static inline void stage_mirostat_2(set *s, const row_facts *r) {
    shares t = shares_of(s);
    double most = (double)r->p.mirostat_mu * LN2;
    int64_t m = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (t.log_total + (double)distance(s, i) <= most) {
            s->keys[m] = s->x[i];
            s->own_ids[m++] = id_of(s, i);
        }
    if (!m) {
        keep_count(s, 1);
        return;
    }
    memcpy(s->own_x, s->keys, sizeof(float) * (size_t)m);
    took_own(s, m);
}

#endif
