/* logprobs.c: logprobs of logits (R, V) and ids (R): (R, 2 + 2 k). A row has the logprob of its token, the number of likelier
 * tokens, the k largest logprobs, and their tokens.
 *
 * A row whose hal_sampling (optional) requests no report is zero. A row without a token (-1), with a NaN or +inf, or with -inf
 * alone, is NaN. Logits are only read.
 */
#include "sample_set.h"

static uint64_t scratch(const cpu_call *c) {
    return set_scratch(c->v[1].shape[1]);
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){c->v[0].shape[0], 1};
}

static int wanted(const cpu_call *c, int64_t row) {
    hal_sampling p;
    if (c->n_in == 2)
        return 1;
    memcpy(&p, cpu_row(c->v + 3, row), sizeof p);
    return p.report != 0;
}

static void run_row(const cpu_call *c, int64_t row, uint8_t *base) {
    int64_t v = c->v[1].shape[1], above = 0, k = ((const arg_logprobs *)c->arg)->k;
    int32_t id = cpu_i32(c->v + 2, row);
    float *out = cpu_f32(c->v, row), mine;
    set s = set_of(cpu_f32(c->v + 1, row), v, 0, base);
    double log_total;
    memset(out, 0, sizeof *out * (size_t)(2 + 2 * k));
    if (!wanted(c, row))
        return;
    if (id < -1 || id >= v) {
        cpu_fault(c);
        return;
    }
    find_best(&s);
    if (id < 0 || has_damaged(&s) || s.all_lost) {
        for (int64_t i = 0; i < 2 + 2 * k; i++)
            out[i] = NAN;
        return;
    }
    log_total = exact_log(total_weight(ALONE, &s)) - WEIGHT_BITS * LN2;
    mine = distance(&s, id);
    for (int64_t i = 0; i < v; i++)
        above += distance(&s, i) < mine;
    out[0] = (float)(-(double)mine - log_total);
    out[1] = (float)above;
    select_first(&s, k);
    for (int64_t i = 0; i < k; i++) {
        out[2 + i] = (float)(-(double)distance(&s, s.list[i].at) - log_total);
        out[2 + k + i] = (float)s.list[i].at;
    }
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        run_row(c, from, cpu_scratch(c, thread));
}

CPU_KERNEL(logprobs) = {NULL, scratch, split, run};
