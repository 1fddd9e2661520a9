/* choices.c: see choices.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "choices.h"
#include "dry.h"
#include "error.h"
#include "model.h"
#include "sampling.h"

enum { MOST_BIASES = MOST_EDITS - MOST_PENALTIES };
static const double MOST_BIAS = 1e9;

struct choices {
    const satchel_model *model;
    uint32_t words;                  /* of a bitmask */
    uint32_t *base, *mask;           /* tokens that may ever come, and that may come next */
    int32_t *edits, n_biases, n_dry; /* MOST_EDITS pairs */
    int32_t *bad, *past; /* bad: sequences of two tokens and more, -1 behind each; past: prompt and answer */
    int64_t n_bad, n_past, n_prompt;
    int64_t min_tokens;
    int32_t mirostat, has_base, has_dry, ready;
    double mu, tau, eta; /* of Mirostat */
    dry dry;
    grammar *grammar; /* NULL: none */
    place *place;     /* in its text; NULL: not begun */
    uint32_t *fits;   /* tokens that it allows */
};

static void forbid(uint32_t *mask, int32_t token) {
    mask[token / 32] &= ~(1u << token % 32);
}

static int argument(const char *what) {
    return hal_fail(SATCHEL_E_ARGUMENT, "%s", what);
}

static int check_token(const choices *c, const char *what, int64_t token) {
    uint32_t most = (uint32_t)c->model->vocabulary;
    if (token >= 0 && token < (int64_t)most)
        return 0;
    return hal_fail(SATCHEL_E_ARGUMENT, "%s: expected token ids of 0 to %u, got %lld", what, most - 1,
                    (long long)token);
}

/* Whether the plan samples alone. */
static int is_plain(const satchel_generate_options *o) {
    return !o->mirostat && !o->min_tokens && !o->n_biases && !o->n_bad_words && !o->allowed && o->dry_multiplier == 0 &&
           !o->grammar;
}

int choices_check(const satchel_model *m, const satchel_generate_options *o) {
    if (o->n_biases < 0 || o->n_biases > MOST_BIASES || (o->n_biases && !o->biases))
        return argument("biases: expected 0 to 512 of them");
    if (o->n_allowed < 0 || (o->allowed && !o->n_allowed) || (o->n_allowed && !o->allowed))
        return argument("allowed: expected one token or more; NULL and 0 allow all");
    if (o->n_bad_words < 0 || (o->n_bad_words && (!o->bad_words || o->bad_words[o->n_bad_words - 1] != -1)))
        return argument("bad_words: expected token sequences, with a -1 behind each");
    if (o->n_dry_breakers < 0 || (o->n_dry_breakers && !o->dry_breakers))
        return argument("dry_breakers: expected as many texts as n_dry_breakers says");
    if (o->grammar && o->grammar->model != m)
        return argument("grammar: expected one of this model");
    if (o->grammar && (o->flags & SATCHEL_IGNORE_END || !m->words.head->n_ends))
        return argument("grammar: an end token ends the answer: expected some, and no SATCHEL_IGNORE_END");
    return 0;
}

static int add_biases(choices *c, const satchel_generate_options *o) {
    for (int64_t i = 0; i < o->n_biases; i++) {
        const satchel_bias *b = o->biases + i;
        int code = check_token(c, "biases", b->token);
        if (code)
            return code;
        if (!(b->amount <= MOST_BIAS)) /* NaN is not, either */
            return hal_fail(SATCHEL_E_ARGUMENT, "bias of token %d: expected a number up to 1e9, got %g", b->token,
                            b->amount);
        for (int64_t k = 0; k < i; k++)
            if (o->biases[k].token == b->token)
                return hal_fail(SATCHEL_E_ARGUMENT, "biases: expected each token once, got %d twice", b->token);
        if (b->amount == -INFINITY) {
            forbid(c->base, b->token);
            c->has_base = 1;
            continue;
        }
        c->edits[2 * c->n_biases] = b->token;
        memcpy(c->edits + 2 * c->n_biases++ + 1, &b->amount, sizeof b->amount);
    }
    return 0;
}

static int add_allowed(choices *c, const satchel_generate_options *o) {
    memset(c->base, o->allowed ? 0 : 0xFF, 4 * (size_t)c->words);
    c->has_base = o->allowed != NULL;
    for (int64_t i = 0; i < o->n_allowed; i++) {
        int code = check_token(c, "allowed", o->allowed[i]);
        if (code)
            return code;
        c->base[o->allowed[i] / 32] |= 1u << o->allowed[i] % 32;
    }
    return 0;
}

static int add_bad_words(choices *c, const satchel_generate_options *o) {
    for (int64_t at = 0, end; at < o->n_bad_words; at = end + 1) {
        for (end = at; o->bad_words[end] != -1; end++) {
            int code = check_token(c, "bad_words", o->bad_words[end]);
            if (code)
                return code;
        }
        if (end == at)
            return argument("bad_words: expected a token or more in each sequence, got an empty one");
        if (end == at + 1) {
            forbid(c->base, o->bad_words[at]);
            c->has_base = 1;
            continue;
        }
        memcpy(c->bad + c->n_bad, o->bad_words + at, sizeof *c->bad * (size_t)(end - at + 1));
        c->n_bad += end - at + 1;
    }
    return 0;
}

static int fill(choices *c, const satchel_generate_options *o, const int32_t *prompt, int64_t count) {
    int64_t room = c->model->size.context + (int64_t)2;
    int code;
    c->words = ((uint32_t)c->model->vocabulary + 31) / 32;
    c->base = malloc(4 * (size_t)c->words);
    c->mask = malloc(4 * (size_t)c->words);
    c->edits = malloc(2 * MOST_EDITS * sizeof *c->edits);
    c->bad = malloc(((size_t)o->n_bad_words + 1) * sizeof *c->bad);
    c->past = malloc((size_t)(room > count ? room : count) * sizeof *c->past);
    c->fits = malloc(4 * (size_t)c->words);
    c->grammar = o->grammar ? o->grammar->grammar : NULL;
    if (!c->base || !c->mask || !c->fits || !c->edits || !c->bad || !c->past)
        return hal_fail(SATCHEL_E_MEMORY, "no memory for the choices of a reply");
    memcpy(c->past, prompt, (size_t)count * sizeof *prompt);
    c->n_past = c->n_prompt = count;
    c->min_tokens = o->flags & SATCHEL_IGNORE_END ? 0 : o->min_tokens;
    c->mirostat = o->mirostat;
    c->tau = o->mirostat_tau;
    c->eta = o->mirostat_eta;
    c->mu = 2 * c->tau;
    if ((code = add_allowed(c, o)) || (code = add_biases(c, o)) || (code = add_bad_words(c, o)))
        return code;
    c->has_dry = sampling_has_dry(o) && !o->mirostat;
    return c->has_dry ? dry_open(&c->model->words, o, c->model->size.context, &c->dry) : 0;
}

int choices_open(const satchel_model *m, const satchel_generate_options *o, const int32_t *prompt, int64_t count,
                 choices **out) {
    int code = choices_check(m, o);
    choices *c;
    *out = NULL;
    if (code || is_plain(o))
        return code;
    if (!(c = calloc(1, sizeof *c)))
        return hal_fail(SATCHEL_E_MEMORY, "no memory for the choices of a reply");
    c->model = m;
    if ((code = fill(c, o, prompt, count)))
        choices_free(c);
    else
        *out = c;
    return code;
}

void choices_free(choices *c) {
    if (!c)
        return;
    dry_free(&c->dry);
    place_free(c->place);
    free(c->fits);
    free(c->base);
    free(c->mask);
    free(c->edits);
    free(c->bad);
    free(c->past);
    free(c);
}

/* Forbids the last token of each bad sequence of which the others came last. */
static void forbid_bad(choices *c) {
    for (int64_t at = 0, end; at < c->n_bad; at = end + 1) {
        for (end = at; c->bad[end] != -1; end++)
            continue;
        int64_t before = end - at - 1;
        if (before <= c->n_past && !memcmp(c->past + c->n_past - before, c->bad + at, sizeof *c->bad * (size_t)before))
            forbid(c->mask, c->bad[end - 1]);
    }
}

/* Allows what the grammar does. It is the model's, whose lock is held. */
static int constrain(choices *c) {
    const words *w = &c->model->words;
    int code = c->place ? 0 : place_open(c->grammar, &c->place);
    if (code || (code = place_fill(c->place, &c->model->words, c->fits)))
        return code;
    for (uint32_t i = 0; i < w->head->n_ends; i++) {
        uint32_t bit = 1u << w->ends[i] % 32, *word = c->fits + w->ends[i] / 32;
        *word = place_is_complete(c->place) ? *word | bit : *word & ~bit;
    }
    for (uint32_t i = 0; i < c->words; i++)
        c->mask[i] &= c->fits[i];
    return 0;
}

static int is_empty(const choices *c) {
    uint32_t vocabulary = (uint32_t)c->model->vocabulary, any = 0;
    for (uint32_t i = 0; i + 1 < c->words; i++)
        any |= c->mask[i];
    return !any && !(c->mask[c->words - 1] & (vocabulary % 32 ? (1u << vocabulary % 32) - 1 : UINT32_MAX));
}

int choices_prepare(choices *c) {
    const tokenizer_head *h = c->model->words.head;
    int code;
    if (c->ready)
        return 0;
    memcpy(c->mask, c->base, 4 * (size_t)c->words);
    for (uint32_t i = 0; i < h->n_ends && c->n_past - c->n_prompt < c->min_tokens; i++)
        forbid(c->mask, (int32_t)c->model->words.ends[i]);
    forbid_bad(c);
    if (c->grammar && (code = constrain(c)))
        return code == HAL_E_MEMORY ? SATCHEL_E_MEMORY : SATCHEL_E_ARGUMENT;
    c->n_dry = c->has_dry ? dry_find(&c->dry, c->past, c->n_past, c->edits + 2 * c->n_biases) : 0;
    if (is_empty(c))
        return argument("the reply's choices together allow no token: expected one or more that may come");
    c->ready = 1;
    return 0;
}

void choices_write(const choices *c, hal_sampling *params, uint32_t *bitmask, int32_t *edits) {
    params->masked = c->has_base || c->n_bad || c->min_tokens || c->grammar;
    params->biases = c->n_biases;
    params->dry_penalties = c->n_dry;
    params->mirostat_mu = (float)c->mu;
    if (params->masked)
        memcpy(bitmask, c->mask, 4 * (size_t)c->words);
    memcpy(edits, c->edits, 8 * (size_t)(c->n_biases + c->n_dry));
}

int choices_took(choices *c, int32_t token, float nll_bits) {
    c->past[c->n_past++] = token;
    c->ready = 0;
    if (c->mirostat)
        c->mu -= c->eta * ((double)nll_bits - c->tau);
    if (!c->place || words_is_end(&c->model->words, token))
        return 0;
    return place_take(c->place, &c->model->words, token) ? SATCHEL_E_ARGUMENT : 0;
}
