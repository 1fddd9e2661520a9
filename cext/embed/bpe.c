/* bpe.c: see encode.h. BPE: patterns cut a text into words, whose bytes or characters are merged by the vocabulary's list of pairs.
 * SentencePiece BPE: the characters of the whole text are merged to whatever piece has the best score. */
#include <stdlib.h>

#include "encode.h"
#include "error.h"
#include "merge.h"
#include "utf8.h"

enum { STEPS_A_POINT = 512 };

/* A text with its code points; ends[i]: byte after point i - 1. */
typedef struct {
    const words *w;
    const uint8_t *bytes;
    const uint32_t *points, *ends;
    pattern_run run;
    merger merger;
    token_list *out;
} encoder;

static int by_list(const merger *m, const merge_symbol *left, const merge_symbol *right, merge_pair *out) {
    const words *w = m->w;
    uint64_t key = (uint64_t)(uint32_t)left->token << 32 | (uint32_t)right->token;
    uint32_t low = 0, high = w->head->n_merges;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_merge *found = w->merges + middle;
        if (((uint64_t)found->left << 32 | found->right) < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == w->head->n_merges || ((uint64_t)w->merges[low].left << 32 | w->merges[low].right) != key)
        return 0;
    out->rank = w->merges[low].rank;
    out->made = (int32_t)w->merges[low].made;
    return 1;
}

static int by_score(const merger *m, const merge_symbol *left, const merge_symbol *right, merge_pair *out) {
    int64_t found = find_word(m->w, m->text + left->at, (uint64_t)left->size + right->size);
    if (found < 0)
        return 0;
    out->rank = m->w->words[found].value;
    out->made = (int32_t)m->w->words[found].token;
    return 1;
}

/* The bytes of a word as symbols; those without a token are left out. */
static void add_bytes(merger *m, const uint8_t *bytes, uint64_t size) {
    for (uint64_t i = 0; i < size; i++)
        if (m->w->byte_tokens[bytes[i]] >= 0)
            merge_add(m, m->w->byte_tokens[bytes[i]], 0, 1);
}

/* The characters of a word as symbols; those without a token become their bytes, or are left out where one has none. */
static void add_characters(merger *m, const uint8_t *bytes, uint64_t size) {
    int64_t n;
    for (uint64_t i = 0; i < size; i += (uint64_t)n) {
        const uint8_t *at = bytes + i, *raw = at;
        int64_t found, raw_size, all = 1;
        n = character_size(*at, (int64_t)(size - i));
        found = find_word(m->w, at, (uint64_t)n);
        if (found >= 0) {
            merge_add(m, (int32_t)m->w->words[found].token, 0, (uint32_t)n);
            continue;
        }
        raw = n == 1 && *at == ' ' ? space_mark : at;
        raw_size = raw == at ? n : 3;
        for (int64_t k = 0; k < raw_size; k++)
            all &= m->w->byte_tokens[raw[k]] >= 0;
        if (all)
            add_bytes(m, raw, (uint64_t)raw_size);
    }
}

static int encode_word(encoder *e, const uint8_t *bytes, uint64_t size) {
    const tokenizer_head *h = e->w->head;
    merger *m = &e->merger;
    int whole = h->kind == TOKENIZER_RAW ? bytes[0] == '\n' : (h->flags & TOKENIZER_WHOLE_WORDS) != 0;
    int64_t found = whole ? find_word(e->w, bytes, size) : -1;
    int code;
    if (found >= 0)
        return token_list_add(e->out, (int32_t)e->w->words[found].token);
    if ((code = merge_begin(m, 3 * size))) /* a space may become three bytes */
        return code;
    if (h->kind == TOKENIZER_RAW)
        add_characters(m, bytes, size);
    else
        add_bytes(m, bytes, size);
    if (!m->n)
        return 0;
    merge_all(m, by_list);
    for (uint32_t i = 0; i != NOWHERE && !code; i = m->symbols[i].after)
        code = token_list_add(e->out, m->symbols[i].token);
    return code;
}

/* Cuts points from `at` to `end` by the patterns from number `program` on, and encodes the words. */
static int encode_piece(encoder *e, uint32_t program, int64_t at, int64_t end) {
    int64_t begin = at, from = at;
    const uint32_t *points = e->points + begin;
    uint64_t steps = STEPS_A_POINT * (uint64_t)(end - at + 64);
    int code = 0;
    if (at == end)
        return 0;
    if (program == e->w->head->n_programs)
        return encode_word(e, e->bytes + e->ends[at], e->ends[end] - e->ends[at]);
    while (at < end && !code) {
        int64_t found;
        e->run.steps = steps; /* later patterns have steps of their own */
        e->run.search = from - begin;
        found = pattern_match(&e->run, e->w->programs[program], points, end - begin, at - begin);
        steps = e->run.steps;
        if (found < -1)
            return (int)found;
        if (found <= at - begin) { /* no match here, or an empty one */
            at++;
            continue;
        }
        /* The text between two matches is a piece, too. */
        if (!(code = encode_piece(e, program + 1, from, at)))
            code = encode_piece(e, program + 1, at, begin + found);
        from = at = begin + found;
    }
    return code ? code : encode_piece(e, program + 1, from, end);
}

int bpe_encode(const words *w, const char *text, int64_t size, token_list *out) {
    encoder e = {.w = w, .out = out, .run = {.set = &w->patterns}, .merger = {.w = w}};
    int raw = w->head->kind == TOKENIZER_RAW, code;
    uint32_t *points = malloc(2 * ((size_t)size + 1) * sizeof *points), *ends;
    uint8_t *copy = raw ? malloc((size_t)size + 1) : NULL;
    int64_t count;
    if (!points || (raw && !copy)) {
        free(points);
        free(copy);
        return hal_fail(HAL_E_MEMORY, "no memory for a text of %lld bytes", (long long)size);
    }
    e.bytes = raw ? copy : (const uint8_t *)text;
    size = raw ? copy_spaces(copy, (const uint8_t *)text, size) : size;
    count = utf8_points((const char *)e.bytes, size, points);
    ends = points + count;
    ends[0] = 0;
    for (int64_t i = 0; i < count; i++)
        ends[i + 1] = ends[i] + (uint32_t)utf8_size(points[i]);
    e.points = points;
    e.ends = ends;
    code = encode_piece(&e, 0, 0, count);
    pattern_end(&e.run);
    merge_end(&e.merger);
    free(points);
    free(copy);
    return code;
}

int scored_encode(const words *w, const char *text, int64_t size, int start, token_list *out) {
    uint8_t *copy = malloc((size_t)size + 1);
    merger m = {.w = w, .text = copy};
    piece_writer p = {w, out, 0};
    int64_t n = 0;
    int code;
    if (!copy)
        return hal_fail(HAL_E_MEMORY, "no memory for a text of %lld bytes", (long long)size);
    if (start && w->head->flags & TOKENIZER_SPACE_PREFIX)
        copy[n++] = ' ';
    n += copy_spaces(copy + n, (const uint8_t *)text, size);
    if (!(code = merge_begin(&m, (uint64_t)n))) {
        int64_t found, wide;
        for (int64_t i = 0; i < n; i += wide) {
            wide = character_size(copy[i], n - i);
            found = find_word(w, copy + i, (uint64_t)wide);
            merge_add(&m, found < 0 ? -1 : (int32_t)w->words[found].token, (uint32_t)i, (uint32_t)wide);
        }
        if (n)
            merge_all(&m, by_score);
        for (uint32_t i = n ? 0 : NOWHERE; i != NOWHERE && !code; i = m.symbols[i].after) {
            const merge_symbol *s = m.symbols + i;
            code = s->token < 0 ? write_unknown(&p, copy + s->at, s->size) : write_piece(&p, s->token);
        }
    }
    merge_end(&m);
    free(copy);
    return code;
}
