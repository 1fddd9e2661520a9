/* words.c: see words.h. A text is cut at special tokens, then into words by the patterns; a word's bytes become tokens, of which the
 * pair of the lowest rank, the leftmost first, is merged until none is left. The section is hostile input. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "section_tables.h"
#include "size.h"
#include "utf8.h"
#include "words.h"

enum { MOST_TOKENS = 1 << 22, MOST_PROGRAMS = 16, MOST_SPECIALS = 1 << 14, STEPS_A_POINT = 512, MOST_TEXT = 1 << 28 };

/* --- the section */

static int wrong(const char *what) {
    return hal_fail(HAL_E_INVALID, "satchel.tokenizer: %s; build the file again with `satchel build`", what);
}

static int check_head(const gguf_file *f, const tokenizer_head *h, uint32_t vocabulary) {
    if (memcmp(h->magic, "SATTOK01", 8) || h->size != f->tokenizer.size)
        return wrong("expected a tokenizer of this version, of as many bytes as it says");
    if (h->crc != gguf_crc(0, (const uint8_t *)h + 16, h->size - 16))
        return wrong("its checksum is wrong: the file is damaged");
    if (!h->n_tokens || h->n_tokens > MOST_TOKENS || h->n_tokens > vocabulary)
        return wrong("expected at most a token for each logit");
    if (!h->n_programs || h->n_programs > MOST_PROGRAMS || h->n_specials > MOST_SPECIALS || h->bos < -1 ||
        h->bos >= (int64_t)h->n_tokens || h->eos < -1 || h->eos >= (int64_t)h->n_tokens)
        return wrong("its patterns or special tokens are out of range");
    if ((h->flags & TOKENIZER_ADD_BOS && h->bos < 0) || (h->flags & TOKENIZER_ADD_EOS && h->eos < 0))
        return wrong("it adds a token that it does not have");
    return 0;
}

static int read_tables(words *w, tables *t) {
    const tokenizer_head *h = w->head;
    w->begins = next(t, (uint64_t)h->n_tokens + 1, 4);
    w->flags = next(t, h->n_tokens, 1);
    w->byte_tokens = next(t, 256, 4);
    w->merges = next(t, h->n_merges, sizeof *w->merges);
    w->words = next(t, h->n_words, sizeof *w->words);
    w->specials = next(t, h->n_specials, sizeof *w->specials);
    w->ends = next(t, h->n_ends, 4);
    w->programs = next(t, h->n_programs, 4);
    w->patterns = (pattern_set){.n_code = h->n_code, .n_classes = h->n_classes, .n_ranges = h->n_ranges};
    w->patterns.code = next(t, h->n_code, sizeof *w->patterns.code);
    w->patterns.classes = next(t, h->n_classes, sizeof *w->patterns.classes);
    w->patterns.ranges = next(t, h->n_ranges, sizeof *w->patterns.ranges);
    w->bytes = next(t, h->n_bytes, 1);
    return t->failed || t->at != t->size ? wrong("its tables have another size than it says") : 0;
}

static int ids_ok(const uint32_t *ids, uint64_t count, uint32_t tokens) {
    for (uint64_t i = 0; i < count; i++)
        if (ids[i] >= tokens)
            return 0;
    return 1;
}

static int check_tables(const words *w) {
    const tokenizer_head *h = w->head;
    const char *fault = pattern_check(&w->patterns);
    for (uint32_t i = 0; i < h->n_tokens; i++)
        if (w->begins[i] > w->begins[i + 1])
            return wrong("its tokens are out of order");
    if (w->begins[0] || w->begins[h->n_tokens] > h->n_bytes)
        return wrong("its tokens do not fill its bytes");
    for (int i = 0; i < 256; i++)
        if (w->byte_tokens[i] < -1 || w->byte_tokens[i] >= (int64_t)h->n_tokens)
            return wrong("a byte's token is out of range");
    for (uint32_t i = 0; i < h->n_merges; i++)
        if (!ids_ok(&w->merges[i].left, 3, h->n_tokens))
            return wrong("a merge is out of range");
    for (uint32_t i = 0; i < h->n_specials; i++)
        if (w->specials[i].token >= h->n_tokens ||
            w->begins[w->specials[i].token] == w->begins[w->specials[i].token + 1])
            return wrong("a special token is out of range or empty");
    for (uint32_t i = 0; i < h->n_words; i++)
        if (w->words[i].token >= h->n_tokens || w->words[i].at > h->n_bytes ||
            w->words[i].size > h->n_bytes - w->words[i].at)
            return wrong("a word is out of range");
    if (!ids_ok(w->ends, h->n_ends, h->n_tokens))
        return wrong("an end token is out of range");
    return fault || !ids_ok(w->programs, h->n_programs, h->n_code) ? wrong(fault ? fault : "a pattern is out of range")
                                                                   : 0;
}

static int read_section(const gguf_file *f, uint32_t vocabulary, words *w) {
    tables t = {w->copy, 0, f->tokenizer.size, 0};
    int code;
    memcpy(w->copy, f->tokenizer.data, f->tokenizer.size);
    if (!(w->head = next(&t, 1, sizeof *w->head)))
        return wrong("it is too short");
    if ((code = check_head(f, w->head, vocabulary)) || (code = read_tables(w, &t)))
        return code;
    return check_tables(w);
}

int words_read(const gguf_file *f, uint32_t vocabulary, words *w) {
    int code;
    *w = (words){0};
    if (!f->tokenizer.data || f->tokenizer.size > UINT32_MAX)
        return wrong("it is missing or too long");
    if (!(w->copy = malloc(f->tokenizer.size + 8)))
        return hal_fail(HAL_E_MEMORY, "no memory for a tokenizer of %llu bytes", (unsigned long long)f->tokenizer.size);
    if ((code = read_section(f, vocabulary, w)))
        words_free(w);
    return code;
}

void words_free(words *w) {
    free(w->copy);
    *w = (words){0};
}

gguf_bytes words_token(const words *w, int32_t token, int hidden) {
    if (token < 0 || (uint32_t)token >= w->head->n_tokens || (w->flags[token] & TOKEN_HIDDEN && !hidden))
        return (gguf_bytes){w->bytes, 0};
    return (gguf_bytes){w->bytes + w->begins[token], w->begins[token + 1] - w->begins[token]};
}

int words_is_end(const words *w, int32_t token) {
    for (uint32_t i = 0; i < w->head->n_ends; i++)
        if (w->ends[i] == (uint32_t)token)
            return 1;
    return 0;
}

int token_list_add(token_list *list, int32_t token) {
    if (list->n == list->room) {
        int64_t room = list->room ? list->room * 2 : 64;
        int32_t *grown = realloc(list->ids, (size_t)room * sizeof *grown);
        if (!grown)
            return hal_fail(HAL_E_MEMORY, "no memory for %lld tokens", (long long)room);
        list->ids = grown;
        list->room = room;
    }
    list->ids[list->n++] = token;
    return 0;
}

/* --- merging */

/* Symbols of a word form a list; a pair that may be merged is in a heap by rank, then place. */
typedef struct {
    int32_t token; /* -1: it became part of the one before */
    uint32_t before, after;
} symbol;
typedef struct {
    uint32_t rank, place, left, right, made;
} pair;
enum { NOWHERE = UINT32_MAX };

/* Memory of a call, which grows with the longest word. */
typedef struct {
    symbol *symbols;
    pair *heap;
    uint32_t n_heap;
    uint64_t room;
} merger;

static const tokenizer_merge *find_merge(const words *w, uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    uint32_t low = 0, high = w->head->n_merges;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_merge *m = w->merges + middle;
        if (((uint64_t)m->left << 32 | m->right) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->head->n_merges && w->merges[low].left == left && w->merges[low].right == right ? w->merges + low
                                                                                                   : NULL;
}

static int before(const pair *a, const pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void heap_add(merger *m, pair p) {
    uint32_t i = m->n_heap++;
    for (; i && before(&p, m->heap + (i - 1) / 2); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = p;
}

static pair heap_take(merger *m) {
    pair first = m->heap[0], last = m->heap[--m->n_heap];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child + 1 < m->n_heap && before(m->heap + child + 1, m->heap + child))
            child++;
        if (child >= m->n_heap || !before(m->heap + child, &last))
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return first;
}

/* Adds the pair of the symbol at `place` and the one after it, if it may be merged. */
static void offer(const words *w, merger *m, uint32_t place) {
    const symbol *s = m->symbols + place;
    const tokenizer_merge *found;
    if (place == NOWHERE || s->after == NOWHERE)
        return;
    found = find_merge(w, (uint32_t)s->token, (uint32_t)m->symbols[s->after].token);
    if (found)
        heap_add(m, (pair){found->rank, place, found->left, found->right, found->made});
}

static int reserve(merger *m, uint64_t size) {
    symbol *symbols;
    pair *heap;
    if (size <= m->room)
        return 0;
    symbols = realloc(m->symbols, size * sizeof *symbols);
    m->symbols = symbols ? symbols : m->symbols;
    /* Each merge takes one symbol away and offers two pairs. */
    heap = realloc(m->heap, 3 * size * sizeof *heap);
    m->heap = heap ? heap : m->heap;
    if (!symbols || !heap)
        return hal_fail(HAL_E_MEMORY, "no memory for a word of %llu bytes", (unsigned long long)size);
    m->room = size;
    return 0;
}

static void merge(const words *w, merger *m) {
    while (m->n_heap) {
        pair p = heap_take(m);
        symbol *left = m->symbols + p.place, *right;
        if (left->token != (int32_t)p.left || left->after == NOWHERE)
            continue;
        right = m->symbols + left->after;
        if (right->token != (int32_t)p.right)
            continue;
        left->token = (int32_t)p.made;
        left->after = right->after;
        if (right->after != NOWHERE)
            m->symbols[right->after].before = p.place;
        right->token = -1;
        offer(w, m, left->before);
        offer(w, m, p.place);
    }
}

/* The token that a word is as a whole; -1: none. */
static int32_t whole_word(const words *w, const uint8_t *bytes, uint64_t size) {
    uint32_t low = 0, high = w->head->n_words;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_word *word = w->words + middle;
        int order = memcmp(w->bytes + word->at, bytes, word->size < size ? word->size : size);
        if (!order && word->size == size)
            return (int32_t)word->token;
        if (order < 0 || (!order && word->size < size))
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static int encode_word(const words *w, merger *m, const uint8_t *bytes, uint64_t size, token_list *out) {
    uint32_t n = 0;
    int32_t whole = w->head->n_words ? whole_word(w, bytes, size) : -1;
    int code = whole >= 0 ? token_list_add(out, whole) : reserve(m, size);
    if (whole >= 0 || code)
        return code;
    for (uint64_t i = 0; i < size; i++)
        if (w->byte_tokens[bytes[i]] >= 0) {
            m->symbols[n] = (symbol){w->byte_tokens[bytes[i]], n - 1, n + 1};
            n++;
        }
    if (!n)
        return 0;
    m->symbols[0].before = m->symbols[n - 1].after = NOWHERE;
    m->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        offer(w, m, i);
    merge(w, m);
    for (uint32_t i = 0; i != NOWHERE && !code; i = m->symbols[i].after)
        code = token_list_add(out, m->symbols[i].token);
    return code;
}

/* --- cutting */

/* A text with its code points; ends[i]: byte after point i - 1. */
typedef struct {
    const words *w;
    const uint8_t *bytes;
    const uint32_t *points;
    const uint32_t *ends;
    pattern_run run;
    merger merger;
    token_list *out;
} encoder;

/* Cuts points from `at` to `end` by the patterns from number `program` on, and encodes the words. */
static int encode_piece(encoder *e, uint32_t program, int64_t at, int64_t end) {
    int64_t begin = at, from = at;
    const uint32_t *points = e->points + begin;
    int code = 0;
    if (at == end)
        return 0;
    if (program == e->w->head->n_programs)
        return encode_word(e->w, &e->merger, e->bytes + e->ends[at], e->ends[end] - e->ends[at], e->out);
    e->run.steps = STEPS_A_POINT * (uint64_t)(end - at + 64);
    while (at < end && !code) {
        int64_t found = pattern_match(&e->run, e->w->programs[program], points, end - begin, at - begin);
        if (found < -1)
            return (int)found;
        if (found <= at - begin) { /* no match here, or an empty one */
            at++;
            continue;
        }
        /* The text between two matches is a piece, too. Later patterns have steps of their own. */
        uint64_t steps = e->run.steps;
        if (!(code = encode_piece(e, program + 1, from, at)))
            code = encode_piece(e, program + 1, at, begin + found);
        e->run.steps = steps;
        from = at = begin + found;
    }
    return code ? code : encode_piece(e, program + 1, from, end);
}

/* Encodes ordinary text. */
int words_encode_plain(const words *w, const char *text, int64_t size, token_list *out) {
    encoder e = {.w = w, .bytes = (const uint8_t *)text, .out = out, .run = {.set = &w->patterns}};
    uint32_t *points = malloc(2 * ((size_t)size + 1) * sizeof *points);
    int64_t count;
    int code;
    if (!points)
        return hal_fail(HAL_E_MEMORY, "no memory for a text of %lld bytes", (long long)size);
    count = utf8_points(text, size, points);
    if (count < 0) {
        free(points);
        return hal_fail(HAL_E_INVALID, "text: expected UTF-8, got another byte at %lld", (long long)(-1 - count));
    }
    uint32_t *ends = points + count;
    ends[0] = 0;
    for (int64_t i = 0; i < count; i++)
        ends[i + 1] = ends[i] + (uint32_t)utf8_size(points[i]);
    e.points = points;
    e.ends = ends;
    code = encode_piece(&e, 0, 0, count);
    pattern_end(&e.run);
    free(e.merger.symbols);
    free(e.merger.heap);
    free(points);
    return code;
}

static const char *find(const char *text, int64_t size, gguf_bytes what) {
    for (const char *at = text; size - (at - text) >= (int64_t)what.size; at++) {
        at = memchr(at, what.data[0], (size_t)(size - (at - text)) - (size_t)what.size + 1);
        if (!at)
            return NULL;
        if (!memcmp(at, what.data, what.size))
            return at;
    }
    return NULL;
}

/* Cuts a text at special tokens, each in all of what is left between those before it, then encodes the rest. */
static int encode_between(const words *w, uint32_t number, const char *text, int64_t size, int special,
                          token_list *out) {
    for (; number < w->head->n_specials; number++) {
        const tokenizer_special *s = w->specials + number;
        gguf_bytes what = words_token(w, (int32_t)s->token, 1);
        const char *at = s->always || special ? find(text, size, what) : NULL;
        int code = 0;
        while (at) {
            if ((code = encode_between(w, number + 1, text, at - text, special, out)) ||
                (code = token_list_add(out, (int32_t)s->token)))
                return code;
            size -= at - text + (int64_t)what.size;
            text = at + what.size;
            at = find(text, size, what);
        }
    }
    return size ? words_encode_plain(w, text, size, out) : 0;
}

int words_encode(const words *w, const char *text, int64_t size, int special, token_list *out) {
    if (size > MOST_TEXT)
        return hal_fail(HAL_E_INVALID, "text: expected at most %d bytes, got %lld", MOST_TEXT, (long long)size);
    return encode_between(w, 0, text, size, special, out);
}
