/* dry.c: see dry.h. */
#include <stdlib.h>
#include <string.h>

#include "dry.h"
#include "error.h"
#include "exact.h"
#include "sampling.h"

enum { REACH = 20 };                /* most tokens of a breaker after its first */
static const double LARGEST = 60.0; /* powers are capped at e^LARGEST */
static const char *const DEFAULTS[] = {"\n", ":", "\"", "*"};

/* A token that begins a breaker, with those that must follow; none: it is a breaker alone. */
struct breaker {
    int32_t token, n, rest[REACH];
};

/* A token that followed an earlier copy of the last `length` tokens. */
struct repeated {
    int32_t token;
    int64_t length;
};

static int add(dry *d, int32_t token, const token_list *rest) {
    struct breaker *b;
    if (d->n_breakers == d->room) {
        int64_t room = d->room ? 2 * d->room : 64;
        if (!(b = realloc(d->breakers, (size_t)room * sizeof *b)))
            return hal_fail(SATCHEL_E_MEMORY, "no memory for %lld sequence breakers", (long long)room);
        d->breakers = b;
        d->room = room;
    }
    b = d->breakers + d->n_breakers++;
    b->token = token;
    b->n = rest ? (int32_t)(rest->n < REACH ? rest->n : REACH) : 0;
    if (b->n)
        memcpy(b->rest, rest->ids, sizeof *b->rest * (size_t)b->n);
    return 0;
}

static int contains(gguf_bytes token, const char *text, uint64_t size) {
    for (uint64_t i = 0; i + size <= token.size; i++)
        if (!memcmp(token.data + i, text, size))
            return 1;
    return 0;
}

static int encode_rest(const words *w, const char *text, uint64_t size, token_list *out) {
    while (size && ((uint8_t)*text & 0xC0) == 0x80) { /* what the token has of a character cannot be encoded */
        text++;
        size--;
    }
    int code = words_encode(w, text, (int64_t)size, WORDS_BARE, out);
    return code == HAL_E_MEMORY ? SATCHEL_E_MEMORY : code ? SATCHEL_E_ARGUMENT : 0;
}

/* Adds a text's breakers: tokens that contain it, and tokens whose end begins it. */
static int add_text(const words *w, dry *d, const char *text) {
    uint64_t size = strlen(text);
    token_list *rests = calloc(size + 1, sizeof *rests); /* after each byte */
    int code = rests ? 0 : hal_fail(SATCHEL_E_MEMORY, "no memory for a sequence breaker");
    for (uint64_t i = 0; !code && i < size; i++)
        code = encode_rest(w, text + i, size - i, rests + i);
    for (int32_t token = 0; !code && size && token < (int32_t)w->head->n_tokens; token++) {
        gguf_bytes bytes = words_token(w, token, 1);
        if (contains(bytes, text, size)) {
            code = add(d, token, NULL);
            continue;
        }
        for (uint64_t n = size - 1; !code && n > 0; n--)
            if (n <= bytes.size && !memcmp(bytes.data + bytes.size - n, text, n))
                code = add(d, token, rests + n);
    }
    for (uint64_t i = 0; rests && i < size; i++)
        free(rests[i].ids);
    free(rests);
    return code;
}

static int by_token(const void *a, const void *b) {
    int32_t x = ((const struct breaker *)a)->token, y = ((const struct breaker *)b)->token;
    return (x > y) - (x < y);
}

int dry_open(const words *w, const satchel_generate_options *o, int64_t context, dry *d) {
    const char *const *texts = o->dry_breakers ? o->dry_breakers : DEFAULTS;
    int32_t n = o->dry_breakers ? o->n_dry_breakers : (int32_t)(sizeof DEFAULTS / sizeof *DEFAULTS);
    int code = 0;
    *d = (dry){.multiplier = o->dry_multiplier, .steepness = exact_log(o->dry_base)};
    d->allowed_length = o->dry_allowed_length;
    d->reach = o->dry_last_n < 0 || o->dry_last_n > context ? context : o->dry_last_n;
    d->lengths = malloc(((size_t)d->reach + 1) * sizeof *d->lengths);
    d->repeated = malloc(((size_t)d->reach + 1) * sizeof *d->repeated);
    if (!d->lengths || !d->repeated)
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for repetitions of %lld tokens", (long long)d->reach);
    for (int32_t i = 0; !code && i < n; i++)
        code = texts[i] ? add_text(w, d, texts[i])
                        : hal_fail(SATCHEL_E_ARGUMENT, "dry_breakers: expected texts, got NULL");
    if (d->n_breakers)
        qsort(d->breakers, (size_t)d->n_breakers, sizeof *d->breakers, by_token);
    if (code)
        dry_free(d);
    return code;
}

void dry_free(dry *d) {
    free(d->breakers);
    free(d->lengths);
    free(d->repeated);
    *d = (dry){0};
}

/* The first breaker of a token; n_breakers: none. */
static int64_t first_of(const dry *d, int32_t token) {
    int64_t low = 0, high = d->n_breakers;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (d->breakers[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->n_breakers && d->breakers[low].token == token ? low : d->n_breakers;
}

/* Whether a breaker begins at `at` and ends within the tokens. */
static int breaks(const dry *d, const int32_t *ids, int64_t count, int64_t at) {
    for (int64_t i = first_of(d, ids[at]); i < d->n_breakers && d->breakers[i].token == ids[at]; i++) {
        const struct breaker *b = d->breakers + i;
        if (b->n <= count - at - 1 && !memcmp(b->rest, ids + at + 1, sizeof *ids * (size_t)b->n))
            return 1;
    }
    return 0;
}

static int breaks_alone(const dry *d, int32_t token) {
    for (int64_t i = first_of(d, token); i < d->n_breakers && d->breakers[i].token == token; i++)
        if (!d->breakers[i].n)
            return 1;
    return 0;
}

/* lengths[i]: of the longest common end of ids[.. i] and all of ids: the Z-function of the reversed text (Gusfield, 1997). */
static void common_ends(const int32_t *ids, int64_t count, int64_t *lengths) {
    const int32_t *end = ids + count - 1;
    int64_t left = 0, right = 0;
    for (int64_t i = 1; i < count; i++) {
        int64_t n = 0;
        if (i < right)
            n = right - i < lengths[count - 1 - (i - left)] ? right - i : lengths[count - 1 - (i - left)];
        while (i + n < count && end[-n] == end[-(i + n)])
            n++;
        if (i + n > right) {
            left = i;
            right = i + n;
        }
        lengths[count - 1 - i] = n;
    }
    lengths[count - 1] = count;
}

static int by_token_then_length(const void *a, const void *b) {
    const struct repeated *x = a, *y = b;
    return x->token != y->token ? (x->token > y->token) - (x->token < y->token)
                                : (x->length < y->length) - (x->length > y->length);
}

static int by_length_then_token(const void *a, const void *b) {
    const struct repeated *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length) - (x->length > y->length)
                                  : (x->token > y->token) - (x->token < y->token);
}

/* Whether the last token came before: else nothing repeats. */
static int comes_before(const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i + 1 < count; i++)
        if (ids[i] == ids[count - 1])
            return 1;
    return 0;
}

int32_t dry_find(const dry *d, const int32_t *ids, int64_t count, int32_t *pairs) {
    int64_t cut = count > d->reach ? count - d->reach : 0, n = 0, kept = 0, limit;
    ids += cut;
    count -= cut;
    if (count <= d->allowed_length || !count || !comes_before(ids, count))
        return 0;
    for (limit = 0; limit < count && !breaks(d, ids, count, count - 1 - limit); limit++)
        continue;
    if (limit < d->allowed_length)
        return 0;
    common_ends(ids, count, d->lengths);
    for (int64_t i = 0; i + 1 < count; i++) {
        int64_t length = d->lengths[i] < limit ? d->lengths[i] : limit;
        if (length >= d->allowed_length && !breaks_alone(d, ids[i + 1]))
            d->repeated[n++] = (struct repeated){ids[i + 1], length};
    }
    qsort(d->repeated, (size_t)n, sizeof *d->repeated, by_token_then_length);
    for (int64_t i = 0; i < n; i++)
        if (!i || d->repeated[i].token != d->repeated[i - 1].token)
            d->repeated[kept++] = d->repeated[i];
    qsort(d->repeated, (size_t)kept, sizeof *d->repeated, by_length_then_token);
    n = kept < MOST_PENALTIES ? kept : MOST_PENALTIES;
    for (int64_t i = 0; i < n; i++) {
        double power = d->steepness * (double)(d->repeated[i].length - d->allowed_length);
        float amount = (float)(-d->multiplier * exact_exp(power < LARGEST ? power : LARGEST));
        pairs[2 * i] = d->repeated[i].token;
        memcpy(pairs + 2 * i + 1, &amount, sizeof amount);
    }
    return (int32_t)n;
}
