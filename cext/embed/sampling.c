/* sampling.c: see sampling.h. Stages without effect are left out, as in Python, so that both give the same tokens. */
#include <math.h>
#include <string.h>

#define STAGE_NUMBERS_ALONE
#include "sample_stages.k.h"

#include "error.h"
#include "sampling.h"

enum { MOST_WHOLE = 1 << 24, MOST_LETTERS = 9 };

satchel_generate_options sampling_defaults(void) {
    return (satchel_generate_options){.size = sizeof(satchel_generate_options),
                                      .seed = -1,
                                      .max_tokens = -1,
                                      .temperature = 0.8f,
                                      .top_k = 40,
                                      .top_p = 0.95f,
                                      .min_p = 0.05f,
                                      .typical_p = 1,
                                      .top_n_sigma = -1,
                                      .xtc_threshold = 0.1f,
                                      .dynatemp_exponent = 1,
                                      .repeat_penalty = 1,
                                      .repeat_last_n = 64,
                                      .mirostat_tau = 5,
                                      .samplers = NULL,
                                      .mirostat_eta = 0.1,
                                      .dry_base = 1.75,
                                      .dry_allowed_length = 2,
                                      .dry_last_n = -1};
}

int sampling_has_dry(const satchel_generate_options *o) {
    return o->dry_multiplier > 0 && o->dry_base >= 1 && o->dry_last_n;
}

static int ranged(const char *name, double value, double low, double high) {
    if (value >= low && value <= high) /* false for NaN */
        return 0;
    return hal_fail(SATCHEL_E_ARGUMENT, "%s: expected a number from %g to %g, got %g", name, low, high, value);
}

static int check(const satchel_generate_options *o) {
    const struct {
        const char *name;
        double value, low, high;
    } rules[] = {{"seed", (double)o->seed, -1, INFINITY},
                 {"max_tokens", (double)o->max_tokens, -1, INFINITY},
                 {"temperature", o->temperature, 0, 100},
                 {"top_k", o->top_k, 0, INT32_MAX},
                 {"top_p", o->top_p, 0, 1},
                 {"min_p", o->min_p, 0, 1},
                 {"typical_p", o->typical_p, 0, 1},
                 {"top_n_sigma", o->top_n_sigma, -1, 1000},
                 {"xtc_probability", o->xtc_probability, 0, 1},
                 {"xtc_threshold", o->xtc_threshold, 0, 1},
                 {"dynatemp_range", o->dynatemp_range, 0, 100},
                 {"dynatemp_exponent", o->dynatemp_exponent, 0, 100},
                 {"repeat_penalty", o->repeat_penalty, 1e-6f, 100},
                 {"presence_penalty", o->presence_penalty, -100, 100},
                 {"frequency_penalty", o->frequency_penalty, -100, 100},
                 {"repeat_last_n", o->repeat_last_n, -1, INT32_MAX},
                 {"mirostat", o->mirostat, 0, 2},
                 {"mirostat_tau", o->mirostat_tau, 0, 100},
                 {"mirostat_eta", o->mirostat_eta, 0, 1},
                 {"dry_multiplier", o->dry_multiplier, 0, 100},
                 {"dry_base", o->dry_base, 0, 100},
                 {"dry_allowed_length", o->dry_allowed_length, 0, INT32_MAX},
                 {"dry_last_n", o->dry_last_n, -1, INT32_MAX},
                 {"min_tokens", o->min_tokens, 0, INT32_MAX},
                 {"flags", o->flags, 0, SATCHEL_IGNORE_END}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (ranged(rules[i].name, rules[i].value, rules[i].low, rules[i].high))
            return SATCHEL_E_ARGUMENT;
    return 0;
}

static float whole(int32_t x) {
    return (float)(x < MOST_WHOLE ? x : MOST_WHOLE);
}

/* The stage of a letter, as SAMPLERS of runtime/sampling/options.py has them, with its numbers. edits: it changes single logits;
 * drops: it may drop the best token. Returns 0 for a letter that is none. */
typedef struct {
    hal_stage stage;
    int on, edits, drops;
} chosen;

static int choose(const satchel_generate_options *o, char letter, chosen *out) {
    switch (letter) {
    case 'e':
        *out = (chosen){
            {STAGE_penalties, {o->repeat_penalty, o->presence_penalty, o->frequency_penalty, whole(o->repeat_last_n)}},
            (o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0) && o->repeat_last_n,
            1,
            0};
        return 1;
    case 'd': /* its numbers are edits of the row */
        *out = (chosen){{STAGE_dry, {0}}, sampling_has_dry(o), 1, 0};
        return 1;
    case 's':
        *out = (chosen){{STAGE_top_n_sigma, {o->top_n_sigma}}, o->top_n_sigma >= 0, 0, 0};
        return 1;
    case 'k':
        *out = (chosen){{STAGE_top_k, {whole(o->top_k)}}, o->top_k > 0, 0, 0};
        return 1;
    case 'y':
        *out = (chosen){{STAGE_typical, {o->typical_p}}, o->typical_p < 1, 0, 1};
        return 1;
    case 'p':
        *out = (chosen){{STAGE_top_p, {o->top_p}}, o->top_p < 1, 0, 0};
        return 1;
    case 'm':
        *out = (chosen){{STAGE_min_p, {o->min_p}}, o->min_p > 0, 0, 0};
        return 1;
    case 'x':
        *out = (chosen){{STAGE_xtc, {o->xtc_probability, o->xtc_threshold}}, o->xtc_probability > 0, 0, 1};
        return 1;
    case 't':
        *out = (chosen){{STAGE_temperature, {o->temperature, o->dynatemp_range, o->dynatemp_exponent}},
                        o->temperature != 1 || o->dynatemp_range > 0,
                        0,
                        0};
        return 1;
    default:
        return 0;
    }
}

/* Mirostat replaces all stages but the temperature. */
static void mirostat(const satchel_generate_options *o, hal_sampling *out) {
    chosen c;
    choose(o, 't', &c);
    out->chain[0] = c.stage;
    if (o->temperature > 0)
        out->chain[1].stage = o->mirostat == 1 ? STAGE_mirostat_1 : STAGE_mirostat_2;
}

int sampling_record(const satchel_generate_options *o, hal_sampling *out) {
    const char *letters = o->samplers ? o->samplers : "edskypmxt";
    size_t count = strlen(letters);
    int code = check(o), n = 0, drops = 0, greedy = 0;
    chosen c[MOST_LETTERS];
    if (code)
        return code;
    *out = (hal_sampling){.seed = (uint64_t)o->seed, .mirostat_mu = 2 * o->mirostat_tau};
    for (size_t i = 0; i < count; i++) {
        if (count > MOST_LETTERS || !choose(o, letters[i], c + i) || memchr(letters, letters[i], i))
            return hal_fail(SATCHEL_E_ARGUMENT, "samplers: expected letters of edskypmxt, each once, got %.20s",
                            letters);
        drops |= c[i].on && c[i].drops;
        greedy |= c[i].on && letters[i] == 't' && o->temperature == 0;
    }
    if (o->mirostat) {
        mirostat(o, out);
        return 0;
    }
    greedy = greedy && !drops;
    for (size_t i = 0; i < count; i++)
        if (c[i].on && (!greedy || c[i].edits))
            out->chain[n++] = c[i].stage;
    if (greedy) {
        choose(o, 't', c);
        out->chain[n] = c[0].stage;
    }
    return 0;
}
