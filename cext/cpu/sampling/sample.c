/* sample.c: samples one token per row of logits (R, V), as runtime/sampling/chain.py defines it: each row passes the stages of
 * its own sampling chain, then a token is drawn.
 *
 * sample gives tokens (R). sample_masked also takes a token bitmask (R, V / 32) and edits of single logits (biases), and gives
 * (R, 2): the token and its nll_bits (negative log2-probability), stored as the bits of a float32. A row with a NaN or +inf, or
 * with -inf alone, has no token: -1.
 *
 * A thread's scratch holds the row's candidate set and the history of W tokens. The history is read from a state, so its ids
 * are checked. Logits are only read.
 */
#include "sample_stages.h"

static const char *check_row(const cpu_call *c) {
    const cpu_view *y = c->v, *logits = c->v + 1, *ring = c->v + 2, *params = c->v + 5;
    const block_format *f;
    if (!cpu_is(logits, F32, 2) || y->shape[0] != logits->shape[0])
        return "logits must be f32 (R, V) and the output of as many rows";
    if (!cpu_is(ring, I32, 2))
        return "the ring must be i32 (S, W)";
    for (int i = 3; i < 5; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != y->shape[0])
            return "slot and pos must be i32 (R)";
    f = block_format_find(params->format);
    if (params->shape[0] != y->shape[0] || params->width / f->block * f->bytes != sizeof(hal_sampling))
        return "params must be one hal_sampling per row";
    return NULL;
}

static const char *check(const cpu_call *c) {
    if (c->n_in != 5)
        return "it takes logits, ring, slot, pos and params";
    if (!cpu_is(c->v, I32, 1))
        return "the output must be i32 (R)";
    return check_row(c);
}

static const char *check_masked(const cpu_call *c) {
    const cpu_view *y = c->v, *bitmask = c->v + 6, *edits = c->v + 7;
    if (c->n_in != 7)
        return "it takes logits, ring, slot, pos, params, token bitmask and edits";
    if (!cpu_is(y, I32, 2) || y->shape[1] != 2)
        return "the output must be i32 (R, 2)";
    if (!cpu_is(bitmask, I32, 2) || bitmask->shape[0] != y->shape[0] ||
        bitmask->shape[1] < (c->v[1].shape[1] + 31) / 32)
        return "the token bitmask must be i32 (R, V / 32)";
    if (!cpu_is(edits, I32, 3) || edits->shape[0] != y->shape[0] || edits->shape[2] != 2)
        return "edits must be i32 (R, E, 2)";
    return check_row(c);
}

static uint64_t scratch(const cpu_call *c) {
    return set_scratch(c->v[1].shape[1]) + 2 * sizeof(ranked) * (uint64_t)c->v[2].shape[1];
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){c->v[0].shape[0], 1};
}

enum { BAD_INDEX = NO_TOKEN - 1 };

static void mask(set *s, const uint32_t *bitmask) {
    float *x = writable(s);
    for (int64_t i = 0; i < s->n; i++)
        x[i] = bitmask[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
}

/* Runs one stage; 0 if the history or an edit has a token out of range. */
static int run_stage(uint8_t stage, set *s, const row_facts *r) {
    switch (stage) {
    case HAL_STAGE_PENALTIES:
        return r->ring && stage_penalties(s, r);
    case HAL_STAGE_DRY:
        if (!add_edits(s, r->dry_penalties, r->p.dry_penalties, r->vocabulary))
            return 0;
        find_best(s);
        return 1;
#define STAGE(NAME, name)                                                                                              \
    case HAL_STAGE_##NAME:                                                                                             \
        stage_##name(s, r);                                                                                            \
        return 1;
        STAGE(TOP_N_SIGMA, top_n_sigma)
        STAGE(TOP_K, top_k)
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

static int32_t draw(set *s, const row_facts *r, float *nll_bits) {
    int64_t at = 0;
    double total, log_total;
    if (s->n > 1 || nll_bits) {
        total = total_weight(s);
        at = cross(s, NULL, uniform(r->p.seed, r->pos) * total, 1, 0).at;
        if (nll_bits) {
            log_total = exact_log(total) - WEIGHT_BITS * LN2;
            *nll_bits = (float)((log_total + (double)distance(s, at)) / LN2);
        }
    }
    return id_of(s, at);
}

/* The row's token; NO_TOKEN if a logit is NaN or +inf, or all are -inf. */
static int32_t sample_row(set *s, row_facts *r, const uint32_t *bitmask, const int32_t *edits, int32_t n_edits,
                          float *nll_bits) {
    if (is_damaged(s))
        return NO_TOKEN;
    if (edits) {
        if (r->p.biases < 0 || r->p.dry_penalties < 0 || r->p.biases > n_edits ||
            r->p.dry_penalties > n_edits - r->p.biases || !add_edits(s, edits, r->p.biases, r->vocabulary))
            return BAD_INDEX;
        r->dry_penalties = edits + 2 * r->p.biases;
    } else
        r->p.dry_penalties = 0;
    if (bitmask && r->p.masked)
        mask(s, bitmask);
    find_best(s);
    if (s->all_lost)
        return NO_TOKEN;
    for (int i = 0; i < HAL_STAGES && r->p.chain[i] != HAL_STAGE_END; i++)
        if (!run_stage(r->p.chain[i], s, r))
            return BAD_INDEX;
    return draw(s, r, nll_bits);
}

static void run_row(const cpu_call *c, int64_t row, uint8_t *base) {
    const cpu_view *ring = c->v + 2;
    int masked = c->n_in == 7;
    int64_t v = c->v[1].shape[1];
    int32_t slot = cpu_i32(c->v + 3, row), *out = (int32_t *)(void *)cpu_row(c->v, row), token;
    set s = set_of(cpu_f32(c->v + 1, row), v, base);
    row_facts r = {.width = ring->shape[1], .vocabulary = v, .pos = cpu_i32(c->v + 4, row)};
    float nll_bits = 0;
    memcpy(&r.p, cpu_row(c->v + 5, row), sizeof r.p);
    if (slot >= 0 && slot < ring->shape[0] && r.pos >= 0)
        r.ring = (const int32_t *)(const void *)cpu_row(ring, slot);
    r.history = (ranked *)(void *)(base + (set_scratch(v) & ~(uint64_t)63));
    r.sorted = r.history + r.width;
    token = sample_row(&s, &r, masked ? (const uint32_t *)(const void *)cpu_row(c->v + 6, row) : NULL,
                       masked ? (const int32_t *)(const void *)cpu_row(c->v + 7, row) : NULL,
                       masked ? c->v[7].shape[1] : 0, masked ? &nll_bits : NULL);
    if (token == BAD_INDEX)
        cpu_fault(c);
    out[0] = token == BAD_INDEX ? 0 : token;
    if (masked)
        memcpy(out + 1, &nll_bits, sizeof nll_bits);
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        run_row(c, from, cpu_scratch(c, thread));
}

CPU_KERNEL(sample) = {check, scratch, split, run};
CPU_KERNEL(sample_masked) = {check_masked, scratch, split, run};
