/* reply.c: see reply.h. A step holds the last token of every answer that waits for its next one, then as much of the prompts as
 * there is room for. Which tokens share a step changes no bit of a result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "reply.h"

/* The tokens of a step by their replies. */
typedef struct {
    satchel_reply *replies[MOST_SLOTS];
    int32_t counts[MOST_SLOTS]; /* tokens of each */
    int32_t rows[MOST_SLOTS];   /* its sampled row, or -1 */
    int32_t n, tokens, sampled;
    int masked; /* whether a reply that is sampled has choices */
} batch;

static int32_t common(const satchel_model *m, int32_t slot, const int32_t *ids, int64_t count) {
    int32_t n = 0, most = m->blocks.lengths[slot];
    while (n < most && n < count && m->tokens[slot][n] == ids[n])
        n++;
    return n;
}

/* Takes any free slot, and begins the answer in the worker process. */
static int begin_in_worker(satchel_reply *r, int32_t slot, const satchel_generate_options *o) {
    satchel_model *m = r->model;
    int64_t room = m->size.context - r->n_prompt + 1;
    int code = worker_generate(m->worker, o, (int64_t)r->sampling.seed, r->most < 0 || r->most > room ? room : r->most,
                               r->prompt, r->n_prompt, &r->number);
    if (code)
        return code;
    r->slot = slot;
    r->fed = r->n_prompt;
    m->replies[slot] = r;
    return 0;
}

int reply_begin(satchel_reply *r, const satchel_generate_options *o) {
    satchel_model *m = r->model;
    int32_t best = -1, kept = -1;
    for (int32_t i = 0; i < m->size.slots; i++) {
        /* The last token is computed in any case: the next one is sampled after it. */
        int32_t n = m->replies[i] ? -1
                    : m->worker   ? 0
                                  : blocks_reach(&m->blocks, i, common(m, i, r->prompt, r->n_prompt - 1));
        if (n > kept || (n >= 0 && n == kept && m->used[i] < m->used[best])) {
            best = i;
            kept = n;
        }
    }
    if (best < 0)
        return hal_fail(SATCHEL_E_FULL, "all %d slots have a reply: free one, or open the model with more",
                        m->size.slots);
    if (m->worker)
        return begin_in_worker(r, best, o);
    blocks_cut(&m->blocks, best, kept);
    r->slot = best;
    r->fed = r->cached = kept;
    m->used[best] = ++m->uses;
    m->replies[best] = r;
    return 0;
}

void reply_end(satchel_reply *r) {
    if (r->slot >= 0 && r->model->replies[r->slot] == r) {
        r->model->replies[r->slot] = NULL;
        if (r->model->worker)
            worker_end(r->model->worker, r->number);
    }
    r->slot = -1;
}

static void add(batch *b, satchel_reply *r, int32_t count, int samples) {
    b->replies[b->n] = r;
    b->counts[b->n] = count;
    b->rows[b->n] = samples ? b->sampled++ : -1;
    b->masked |= samples && r->choices;
    b->tokens += count;
    b->n++;
}

/* Whether the reply waits for a step. */
static int waits(const satchel_reply *r) {
    return r && !r->has_queued && !r->reason && !r->failed;
}

/* Settles what the reply may choose next; where there is nothing, it alone fails. */
static void prepare(satchel_reply *r) {
    if (!waits(r) || !r->choices)
        return;
    r->failed = choices_prepare(r->choices);
    if (r->failed)
        snprintf(r->fault, sizeof r->fault, "%s", hal_last_error());
}

static void gather(const satchel_model *m, batch *b) {
    int32_t most = (int32_t)m->plan.head->batch;
    for (int i = 0; i < m->size.slots; i++)
        prepare(m->replies[i]);
    for (int i = 0; i < m->size.slots; i++)
        if (waits(m->replies[i]) && m->replies[i]->fed == m->replies[i]->n_prompt && b->tokens < most)
            add(b, m->replies[i], 1, 1);
    for (int i = 0; i < m->size.slots; i++) {
        satchel_reply *r = m->replies[i];
        int64_t left = waits(r) ? r->n_prompt - r->fed : 0;
        int32_t count = (int32_t)(left < most - b->tokens ? left : most - b->tokens);
        if (count > 0)
            add(b, r, count, count == left);
    }
}

/* The smallest program that has room. */
static program *find(satchel_model *m, const batch *b) {
    program *found = NULL;
    for (int i = 0; i < m->n_programs; i++) {
        program *p = m->programs + i;
        int fits = (int64_t)p->tokens >= b->tokens && (int64_t)p->rows >= b->sampled;
        if (fits && p->what == (b->masked ? OUTPUT_MASKED : OUTPUT_TOKENS) && (!found || p->tokens < found->tokens))
            found = p;
    }
    return found;
}

/* Writes the reply's bitmask and edits into the step block. */
static void write_choices(const satchel_model *m, program *p, const satchel_reply *r, int32_t row) {
    size_t words = (m->plan.head->vocabulary + (size_t)31) / 32;
    uint32_t *bitmask = (uint32_t *)(p->block + p->layout.fields[FIELD_BITMASK]) + words * (size_t)row;
    int32_t *edits = (int32_t *)(p->block + p->layout.fields[FIELD_EDITS]) + 2 * MOST_EDITS * (size_t)row;
    choices_write(r->choices, (hal_sampling *)(p->block + p->layout.fields[FIELD_PARAMS]) + row, bitmask, edits);
}

/* Gives the slots their blocks and writes the step block. */
static int fill(satchel_model *m, program *p, const batch *b) {
    int32_t *counts = (int32_t *)p->block, at = 0;
    int32_t *inputs[FIELD_PARAMS];
    hal_sampling *params = (hal_sampling *)(p->block + p->layout.fields[FIELD_PARAMS]);
    int code;
    for (int i = 0; i < FIELD_PARAMS; i++)
        inputs[i] = (int32_t *)(p->block + p->layout.fields[i]);
    counts[HAL_COUNT_TOKENS] = b->tokens;
    counts[HAL_COUNT_ROWS] = b->sampled;
    for (int i = 0; i < b->n; i++) {
        satchel_reply *r = b->replies[i];
        int32_t start = m->blocks.lengths[r->slot];
        if ((code = blocks_advance(&m->blocks, r->slot, start + b->counts[i])))
            return code;
        for (int32_t k = 0; k < b->counts[i]; k++, at++) {
            int32_t token = r->fed < r->n_prompt ? r->prompt[r->fed + k] : r->last;
            inputs[FIELD_IDS][at] = m->tokens[r->slot][start + k] = token;
            inputs[FIELD_POS][at] = start + k;
            inputs[FIELD_SLOT][at] = r->slot;
        }
        if (b->rows[i] >= 0) {
            inputs[FIELD_ROWS][b->rows[i]] = at - 1;
            params[b->rows[i]] = r->sampling;
            if (r->choices)
                write_choices(m, p, r, b->rows[i]);
        }
    }
    for (int k = 0; k < m->blocks.n_groups; k++)
        memcpy(p->block + p->layout.tables[k], m->blocks.groups[k].table,
               sizeof(int32_t) * (size_t)m->size.slots * (size_t)m->size.width);
    return 0;
}

/* Runs the step; out: of each row its token, and behind it, where the program gives it, the bits of its nll_bits. */
static int run(satchel_model *m, program *p, const batch *b, int32_t *out) {
    int32_t each = p->what == OUTPUT_MASKED ? 2 : 1;
    /* The builder puts the edits last: those of rows that are not there need not be sent. */
    uint64_t end = p->layout.fields[FIELD_EDITS] + 8ull * MOST_EDITS * (uint64_t)b->sampled;
    int code = m->backend->run(p->exec, p->block, each == 2 && end < p->layout.size ? end : p->layout.size);
    if (!code)
        code = m->backend->wait(p->exec, UINT32_MAX);
    if (!code && b->sampled)
        code = m->backend->read(m->out, p->output, out, sizeof *out * (uint64_t)(b->sampled * each));
    for (int i = 0; !code && i < b->sampled * each; i += each)
        if (out[i] < 0 || (uint32_t)out[i] >= m->plan.head->vocabulary)
            code = hal_fail(HAL_E_DEVICE,
                            "no token can be sampled: the model's numbers are not finite, or its file is damaged");
    return code;
}

/* Queues the token that was sampled for a reply; sampled[1]: its nll_bits, if the reply has choices. */
static void take(satchel_reply *r, const int32_t *sampled) {
    float bits;
    r->queued = r->last = sampled[0];
    r->has_queued = 1;
    if (!r->choices)
        return;
    memcpy(&bits, sampled + 1, sizeof bits);
    if (!choices_took(r->choices, sampled[0], bits))
        return;
    r->failed = SATCHEL_E_ARGUMENT;
    snprintf(r->fault, sizeof r->fault, "%s", hal_last_error());
}

static int step(satchel_model *m) {
    batch b = {0};
    int32_t sampled[2 * MOST_SLOTS];
    program *p;
    int code;
    gather(m, &b);
    if (!b.n) /* the replies that waited have failed */
        return 0;
    p = find(m, &b);
    code = p ? fill(m, p, &b) : hal_fail(HAL_E_INVALID, "no plan has room for %d tokens", b.tokens);
    code = model_code(code ? code : run(m, p, &b, sampled));
    for (int i = 0; i < b.n; i++) {
        satchel_reply *r = b.replies[i];
        if (code) { /* what the slot holds is not known any more */
            r->failed = code;
            blocks_cut(&m->blocks, r->slot, 0);
            continue;
        }
        r->fed += r->fed < r->n_prompt ? b.counts[i] : 0;
        if (b.rows[i] >= 0) {
            take(r, sampled + (p->what == OUTPUT_MASKED ? 2 : 1) * b.rows[i]);
        }
    }
    return code;
}

/* The reply's next token from the worker process. */
static int fetch(satchel_reply *r) {
    r->failed = worker_next(r->model->worker, r->number, &r->queued, &r->cached, &r->reason);
    if (r->failed) {
        snprintf(r->fault, sizeof r->fault, "%s", hal_last_error());
        return r->failed;
    }
    r->has_queued = r->queued >= 0;
    r->last = r->queued;
    return 0;
}

int reply_advance(satchel_reply *r) {
    while (waits(r)) {
        int code = r->model->worker ? fetch(r) : step(r->model);
        if (code)
            return code;
    }
    if (r->failed && r->fault[0])
        return hal_fail(r->failed, "%s", r->fault);
    return r->failed ? hal_fail(r->failed, "the reply ended with an error: begin another one") : 0;
}

/* Whether the context has no room for a further token. */
static int is_full(const satchel_reply *r) {
    const satchel_model *m = r->model;
    return (m->worker ? r->n_prompt + r->made - 1 : m->blocks.lengths[r->slot]) >= m->size.context;
}

int reply_take(satchel_reply *r, int32_t *token) {
    const satchel_model *m = r->model;
    if (!r->has_queued)
        return 0;
    r->has_queued = 0;
    if (!r->ignore_end && words_is_end(&m->words, r->queued)) {
        r->reason = SATCHEL_ENDED;
        return 0;
    }
    *token = r->queued;
    r->made++;
    if (r->made == r->most || is_full(r))
        r->reason = SATCHEL_LENGTH;
    return 1;
}
