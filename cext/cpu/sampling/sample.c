/* sample.c: samples one token per row of logits (R, V), as runtime/sampling/chain.py defines it: each row passes the stages of
 * its own sampling chain, then a token is drawn.
 *
 * sample gives tokens (R). sample_masked also takes a token bitmask (R, V / 32) and edits of single logits (biases), and gives
 * (R, 2): the token and its nll_bits (negative log2-probability), stored as the bits of a float32. A row with a NaN or +inf, or
 * with -inf alone, has no token: -1.
 *
 * The stages are those of the portable kernels (sample_stages.k.h). A thread's scratch holds the row's candidate set and the
 * history of W tokens. The history is read from a state, so its ids are checked. Logits are only read.
 */
#include "sample_set.h"

#include "../../kernels/sample_stages.k.h"

static uint64_t scratch(const cpu_call *c) {
    return set_scratch(c->v[1].shape[1]) + 2 * sizeof(ranked) * (uint64_t)c->v[2].shape[1];
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){c->v[0].shape[0], 1};
}

FN int add_edits(self m, set *s, const int32_t *edits, int n, int vocabulary) {
    float *x = n ? writable(m, s) : NULL;
    for (int i = 0; i < n; i++) {
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

/* Sorts the history, because it may be as long as the context. */
FN void stage_penalties(self m, set *s, row_facts *r) {
    int64_t n = history_of(r), same, at;
    const ranked *seen;
    float *x;
    r->bad_index = !r->ring;
    for (int64_t i = 0; i < n && !r->bad_index; i++) {
        int32_t token = r->ring[(r->pos - i) % r->width];
        r->bad_index = token < 0 || token >= r->vocabulary;
        s->history[i] = (ranked){(uint32_t)token, token};
    }
    if (r->bad_index)
        return;
    seen = sort_ranked(s->history, s->sorted, n);
    x = writable(m, s);
    for (int64_t i = 0; i < n; i += same) {
        for (same = 1; i + same < n && seen[i + same].at == seen[i].at; same++)
            continue;
        if ((at = place_of(s, seen[i].at)) >= 0)
            x[at] = penalized(x[at], (int)same, r);
    }
    changed(m, s);
}

static void run_row(const cpu_call *c, int64_t row, uint8_t *scratch) {
    const cpu_view *ring = c->v + 2, *logits = c->v + 1;
    int masked = c->n_in == 7, asked;
    int32_t slot = cpu_i32(c->v + 3, row), *out = (int32_t *)(void *)cpu_row(c->v, row), token = NO_TOKEN;
    set s = set_of(cpu_f32(logits, row), logits->shape[1], ring->shape[1], scratch);
    row_facts r = {.params = (const char *)cpu_row(c->v + 5, row),
                   .width = ring->shape[1],
                   .vocabulary = logits->shape[1],
                   .pos = cpu_i32(c->v + 4, row)};
    float nll_bits = 0;
    if (slot >= 0 && slot < ring->shape[0] && r.pos >= 0)
        r.ring = (const int32_t *)(const void *)cpu_row(ring, slot);
    asked = masked && (is_edited(r.params) || is_masked(r.params));
    if (asked)
        r.edits = (const int32_t *)(const void *)cpu_row(c->v + 7, row);
    else
        find_best(&s);
    if (!has_damaged(&s))
        token = sample_row(ALONE, &s, &r, masked ? c->v[7].shape[1] : 0,
                           masked ? (const uint32_t *)(const void *)cpu_row(c->v + 6, row) : NULL, &nll_bits);
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

CPU_KERNEL(sample) = {NULL, scratch, split, run};
CPU_KERNEL(sample_masked) = {NULL, scratch, split, run};
