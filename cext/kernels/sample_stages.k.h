/* sample_stages.k.h: the stages of a sampling chain, one function each, on the candidates of one row; all threads of the group
 * call them. runtime/sampling/chain.py defines each stage and names its source; the sets here are bit-identical.
 *
 * GPUs and the CPU share this file: each includes it after its own `set` of candidates (sample_set.k.h, for a group of threads;
 * cext/cpu/sampling/sample_set.h, for one) and before its own add_edits() and stage_penalties(). A CPU's group is one thread.
 * A program that defines STAGE_NUMBERS_ALONE gets the enum of stages and nothing else.
 */
#ifndef SATCHEL_SAMPLE_STAGES_K_H
#define SATCHEL_SAMPLE_STAGES_K_H

/* The stages in the order of STAGES in chain.py: that of SAMPLERS in options.py, then Mirostat. Stage STAGE_<name> is run by
 * stage_<name>(m, s, r); r->numbers are the options that SAMPLERS names as its numbers, in the same order. */
#define SAMPLING_STAGES(X)                                                                                             \
    X(penalties)                                                                                                       \
    X(dry)                                                                                                             \
    X(top_n_sigma)                                                                                                     \
    X(top_k)                                                                                                           \
    X(typical)                                                                                                         \
    X(top_p)                                                                                                           \
    X(min_p)                                                                                                           \
    X(xtc)                                                                                                             \
    X(temperature)                                                                                                     \
    X(mirostat_1)                                                                                                      \
    X(mirostat_2)

#define STAGE_NUMBER(name) STAGE_##name,
enum { STAGE_end, SAMPLING_STAGES(STAGE_NUMBER) N_STAGES };
#undef STAGE_NUMBER

#ifndef STAGE_NUMBERS_ALONE

enum { MIROSTAT_TOP = 100 };
enum { NO_TOKEN = -1, BAD_INDEX = -2 }; /* results of a row without a valid candidate, and with a bad history or edit */

/* Inputs of a row. */
typedef struct {
    DEVICE const char *params;  /* its hal_sampling, at any address */
    DEVICE const int32_t *ring; /* the slot's tokens by position; NULL if slot or position is out of range */
    DEVICE const int32_t
        *edits; /* (token, bits of a float32) pairs; NULL: none, and a token bitmask is in the logits already */
    int width, vocabulary, pos;
    /* fields of hal_sampling, see read_row() */
    uint64_t seed;
    float mirostat_mu;
    int32_t masked, biases, dry_penalties;
    float numbers[HAL_STAGE_NUMBERS]; /* of the stage that runs */
    int bad_index;                    /* 1: the history or an edit has a token out of range */
} row_facts;

/* Copies a field of a hal_sampling: the step block may have it at any address, and its chain is too long for registers. */
#define COPY_FIELD(to, params, field) memcpy(to, (params) + offsetof(hal_sampling, field), sizeof *(to))

FN void read_row(THREAD row_facts *r) {
    COPY_FIELD(&r->seed, r->params, seed);
    COPY_FIELD(&r->mirostat_mu, r->params, mirostat_mu);
    COPY_FIELD(&r->masked, r->params, masked);
    COPY_FIELD(&r->biases, r->params, biases);
    COPY_FIELD(&r->dry_penalties, r->params, dry_penalties);
    r->bad_index = 0;
}

FN hal_stage stage_of(DEVICE const char *params, int i) {
    hal_stage stage;
    memcpy(&stage, params + offsetof(hal_sampling, chain) + (size_t)i * sizeof stage, sizeof stage);
    return stage;
}

/* Whether a row's token is the largest logit, whatever the rest of the chain. */
FN int is_greedy(DEVICE const char *params) {
    hal_stage first = stage_of(params, 0);
    return first.stage == STAGE_temperature && first.numbers[0] <= 0;
}

/* Whether single logits of a row are edited. */
FN int is_edited(DEVICE const char *params) {
    int32_t biases, dry_penalties;
    COPY_FIELD(&biases, params, biases);
    COPY_FIELD(&dry_penalties, params, dry_penalties);
    return biases || dry_penalties;
}

/* Whether a row has a token bitmask. */
FN int is_masked(DEVICE const char *params) {
    int32_t masked;
    COPY_FIELD(&masked, params, masked);
    return masked != 0;
}

/* Whether a row's logprobs are requested. */
FN int is_reported(DEVICE const char *params) {
    int32_t report;
    COPY_FIELD(&report, params, report);
    return report != 0;
}

typedef struct {
    double total, log_total; /* sum of weights; its logarithm relative to the largest weight */
} shares;

FN shares shares_of(self m, THREAD set *s) {
    shares t;
    t.total = total_weight(m, s);
    t.log_total = exact_log(t.total) - WEIGHT_BITS * LN2;
    return t;
}

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

/* Numbers of the stage penalties: repeat, presence and frequency penalty, and for history_of() repeat_last_n. */
FN float penalized(float x, int count, THREAD const row_facts *r) {
    float repeat = r->numbers[0], presence = r->numbers[1], frequency = r->numbers[2];
    x = x > 0 ? x / repeat : x * repeat;
    x = x - (float)count * frequency - presence;
    return x < MOST ? x : MOST;
}

/* Number of positions of the row's history, this one the last; older tokens are overwritten. repeat_last_n < 0: all. */
FN int history_of(THREAD const row_facts *r) {
    float last_n = r->numbers[3];
    int n = r->pos < r->width ? r->pos + 1 : r->width;
    return last_n >= 0 && last_n < (float)n ? (int)last_n : n;
}

/* Adds n edits (logit biases) to the logits, those of one token in order; 0 if a token is out of range. */
FN int add_edits(self m, THREAD set *s, DEVICE const int32_t *edits, int n, int vocabulary);
FN void stage_penalties(self m, THREAD set *s, THREAD row_facts *r);

FN void stage_dry(self m, THREAD set *s, THREAD row_facts *r) {
    if (r->edits)
        r->bad_index = !add_edits(m, s, r->edits + 2 * r->biases, r->dry_penalties, r->vocabulary);
    changed(m, s);
}

FN double square(double x) {
    return x * x;
}

FN void stage_top_n_sigma(self m, THREAD set *s, THREAD const row_facts *r) {
    double sum, count, mean, least;
    int64_t real = 0;
    if (s->all_lost || r->numbers[0] < 0)
        return;
    for (int i = m.thread; i < s->n; i += m.threads)
        real += s->x[i] > -INFINITY;
    count = (double)sum_of_all(m, s, real);
    LANES_SUM(m, s, s->x[i] > -INFINITY ? (double)s->x[i] : 0.0, sum);
    mean = sum / count;
    LANES_SUM(m, s, s->x[i] > -INFINITY ? square((double)s->x[i] - mean) : 0.0, sum);
    least = (double)s->best - (double)r->numbers[0] * sqrt(sum / count);
    KEEP(m, s, (double)s->x[i] >= least);
}

FN void stage_top_k(self m, THREAD set *s, THREAD const row_facts *r) {
    float k = r->numbers[0];
    if (k > 0 && k < (float)s->n)
        keep_count(m, s, (int)k);
}

FN void stage_typical(self m, THREAD set *s, THREAD const row_facts *r) {
    shares t = shares_of(m, s);
    double h = entropy(m, s, t);
    for (int i = m.thread; i < s->n; i += m.threads)
        s->keys[i] = (float)fabs((t.log_total + (double)distance(s, i)) - h);
    BARRIER(m); /* kept: cross() also has a barrier before it reads other threads' keys */
    keep_first(m, s, s->keys, cross(m, s, s->keys, (double)r->numbers[0] * t.total, 1, 0));
    changed(m, s); /* the largest logit may be removed */
}

FN void stage_top_p(self m, THREAD set *s, THREAD const row_facts *r) {
    keep_first(m, s, NULL, cross(m, s, NULL, (double)r->numbers[0] * total_weight(m, s), 0, 0));
}

FN void stage_min_p(self m, THREAD set *s, THREAD const row_facts *r) {
    ranked edge = {0, INT32_MAX};
    float share = r->numbers[0], most = share > 0 ? -(float)exact_log((double)share) : INFINITY;
    edge.key = f32_bits(most > 0 ? most : 0);
    if (share > 0)
        keep_first(m, s, NULL, edge);
}

FN void stage_xtc(self m, THREAD set *s, THREAD const row_facts *r) {
    float probability = r->numbers[0], threshold = r->numbers[1];
    double least = (double)threshold * total_weight(m, s);
    double drawn = uniform(r->seed ^ 0x9FB21C651E98DF25u, r->pos);
    int64_t count = 0;
    float far = -1;
    int last = -1;
    if (threshold > 0.5f || drawn >= (double)probability)
        return;
    for (int i = m.thread; i < s->n; i += m.threads)
        if ((double)weight(s, i) >= least) {
            count++;
            far = distance(s, i) > far ? distance(s, i) : far;
        }
    if (sum_of_all(m, s, count) < 2)
        return;
    far = most_of_all(m, s, far);
    for (int i = m.thread; i < s->n; i += m.threads)
        if ((double)weight(s, i) >= least && distance(s, i) == far)
            last = i;
    last = last_of_all(m, s, last);
    KEEP(m, s, i == last || !((double)weight(s, i) >= least));
    changed(m, s);
}

FN void stage_temperature(self m, THREAD set *s, THREAD const row_facts *r) {
    double by = (double)r->numbers[0], spread = (double)r->numbers[1], exponent = (double)r->numbers[2];
    DEVICE float *x;
    float divisor;
    if (by > 0 && spread > 0 && s->n > 1) {
        double low = by - spread > 0 ? by - spread : 0, high = by + spread;
        double share = entropy(m, s, shares_of(m, s)) / exact_log((double)s->n);
        by = low + (high - low) * exact_power(share > 0 ? share : 0, exponent);
    }
    if (by <= 0) {
        keep_count(m, s, 1);
        return;
    }
    divisor = (float)by;
    x = room_for_all(m, s);
    for (int i = m.thread; i < s->n; i += m.threads) {
        float d = distance(s, i);
        x[i] = d == 0 ? 0 : -d / divisor;
    }
    took_all(m, s);
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
    k = bottom != 0 ? eps * exact_exp((double)r->mirostat_mu * LN2) / bottom : 1;
    k = slope > 0 ? exact_power(k, 1 / slope) : (double)s->n;
    k = k > 1 ? k : 1;
    return k < (double)s->n ? k : (double)s->n;
}

FN void stage_mirostat_1(self m, THREAD set *s, THREAD const row_facts *r) {
    int n = (int)(s->n < MIROSTAT_TOP ? s->n : MIROSTAT_TOP);
    double k = mirostat_count(first_distances(m, s, n), n, s, r);
    BARRIER(m); /* kept: with today's stages, another barrier comes before the distances are written again */
    keep_count(m, s, (int)k);
}

FN void stage_mirostat_2(self m, THREAD set *s, THREAD const row_facts *r) {
    shares t = shares_of(m, s);
    double most = (double)r->mirostat_mu * LN2;
    int64_t some = 0;
    for (int i = m.thread; i < s->n; i += m.threads)
        some += t.log_total + (double)distance(s, i) <= most;
    if (sum_of_all(m, s, some) == 0)
        keep_count(m, s, 1);
    else
        KEEP(m, s, t.log_total + (double)distance(s, i) <= most);
}

/* Runs one stage; 0 if there is none of this number, or if the history or an edit has a token out of range. */
FN int run_stage(self m, int32_t stage, THREAD set *s, THREAD row_facts *r) {
    switch (stage) {
#define RUN_STAGE(name)                                                                                                \
    case STAGE_##name:                                                                                                 \
        stage_##name(m, s, r);                                                                                         \
        return !r->bad_index;
        SAMPLING_STAGES(RUN_STAGE)
#undef RUN_STAGE
    }
    return 0;
}

/* Token bitmask: sets logits of tokens whose bit is clear to -INFINITY. */
FN void mask(self m, THREAD set *s, DEVICE const uint32_t *bitmask) {
    DEVICE float *x = writable(m, s);
    for (int i = m.thread; i < s->n; i += m.threads)
        x[i] = bitmask[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
}

/* Steps before the chain (edits, of at most n_edits, and the token bitmask): 0, or why there is no token. Of a row without edits
 * the largest logit is known. */
FN int start_row(self m, THREAD set *s, THREAD const row_facts *r, int n_edits, DEVICE const uint32_t *bitmask) {
    if (!r->edits)
        return s->all_lost ? NO_TOKEN : 0;
    if (r->biases < 0 || r->dry_penalties < 0 || r->biases > n_edits || r->dry_penalties > n_edits - r->biases ||
        !add_edits(m, s, r->edits, r->biases, r->vocabulary))
        return BAD_INDEX;
    if (r->masked)
        mask(m, s, bitmask);
    changed(m, s);
    return s->all_lost ? NO_TOKEN : 0;
}

FN int draw(self m, THREAD set *s, THREAD const row_facts *r, THREAD float *nll_bits) {
    shares t = shares_of(m, s);
    int at = s->n > 1 ? cross(m, s, NULL, uniform(r->seed, r->pos) * t.total, 1, 0).at : 0;
    *nll_bits = (float)((t.log_total + (double)distance(s, at)) / LN2);
    return id_of(s, at);
}

/* The row's token, NO_TOKEN or BAD_INDEX. No logit is damaged. */
FN int sample_row(self m, THREAD set *s, THREAD row_facts *r, int n_edits, DEVICE const uint32_t *bitmask,
                  THREAD float *nll_bits) {
    int why;
    read_row(r);
    why = start_row(m, s, r, n_edits, bitmask);
    *nll_bits = 0;
    if (why)
        return why;
    for (int i = 0; i < HAL_STAGES; i++) {
        hal_stage next = stage_of(r->params, i);
        if (next.stage == STAGE_end)
            break;
        for (int j = 0; j < HAL_STAGE_NUMBERS; j++)
            r->numbers[j] = next.numbers[j];
        if (!run_stage(m, next.stage, s, r))
            return BAD_INDEX;
    }
    return draw(m, s, r, nll_bits);
}

#endif
#endif
