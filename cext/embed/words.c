/* words.c: see words.h, and encode.h for words by their bytes. The section is hostile input: every number that is an index is
 * checked here, once; the order of tables is not, so a search may miss, but ends. */
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "error.h"
#include "section_tables.h"
#include "size.h"
#include "utf8.h"

enum { MOST_TOKENS = 1 << 22, MOST_PROGRAMS = 16, MOST_SPECIALS = 1 << 14 };

/* --- the section */

static int wrong(const char *what) {
    return hal_fail(HAL_E_INVALID, "satchel.tokenizer: %s; build the file again with `satchel build`", what);
}

/* Whether a token is one, or -1. */
static int token_ok(const tokenizer_head *h, int64_t token) {
    return token >= -1 && token < (int64_t)h->n_tokens;
}

static int check_head(const gguf_file *f, const tokenizer_head *h, uint32_t vocabulary) {
    if (memcmp(h->magic, "SATTOK02", 8) || h->size != f->tokenizer.size)
        return wrong("expected a tokenizer of this version, of as many bytes as it says");
    if (h->crc != gguf_crc(0, (const uint8_t *)h + 16, h->size - 16))
        return wrong("its checksum is wrong: the file is damaged");
    if (!h->n_tokens || h->n_tokens > MOST_TOKENS || h->n_tokens > vocabulary)
        return wrong("expected at most a token for each logit");
    if (h->kind >= N_TOKENIZERS || h->n_programs > MOST_PROGRAMS || h->n_specials > MOST_SPECIALS ||
        !token_ok(h, h->bos) || !token_ok(h, h->eos) || !token_ok(h, h->unknown))
        return wrong("its kind, patterns or special tokens are out of range");
    if ((h->kind <= TOKENIZER_RAW && !h->n_programs) || (h->kind == TOKENIZER_WORDPIECE && !h->n_classes))
        return wrong("it has no patterns");
    if (h->kind == TOKENIZER_WORDPIECE && h->unknown < 0)
        return wrong("it has no unknown token");
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
    w->maps = next(t, h->n_maps, sizeof *w->maps);
    w->points = next(t, h->n_points, 4);
    w->charsmap = next(t, h->n_charsmap, 1);
    w->bytes = next(t, h->n_bytes, 1);
    return t->failed || t->at != t->size ? wrong("its tables have another size than it says") : 0;
}

static int ids_ok(const uint32_t *ids, uint64_t count, uint32_t tokens) {
    for (uint64_t i = 0; i < count; i++)
        if (ids[i] >= tokens)
            return 0;
    return 1;
}

static int check_maps(const words *w) {
    const tokenizer_head *h = w->head;
    for (uint32_t i = 0; i < h->n_maps; i++) {
        const tokenizer_map *m = w->maps + i;
        if (m->low > m->high || m->kind >= N_MAPS ||
            (m->kind == MAP_POINTS && (m->value > h->n_points || m->count > h->n_points - m->value)))
            return wrong("a character's map is out of range");
    }
    if (h->n_charsmap && (h->n_charsmap < 5 || w->charsmap[h->n_charsmap - 1]))
        return wrong("its character map does not end");
    return 0;
}

static int check_words(words *w) {
    const tokenizer_head *h = w->head;
    for (uint32_t i = 0; i < h->n_words; i++) {
        const tokenizer_word *word = w->words + i;
        if (word->token >= h->n_tokens || word->at > h->n_bytes || word->size > h->n_bytes - word->at)
            return wrong("a word is out of range");
        w->longest = w->longest > word->size ? w->longest : word->size;
    }
    return 0;
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
        if (!token_ok(h, w->byte_tokens[i]))
            return wrong("a byte's token is out of range");
    for (uint32_t i = 0; i < h->n_merges; i++)
        if (!ids_ok(&w->merges[i].left, 3, h->n_tokens))
            return wrong("a merge is out of range");
    for (uint32_t i = 0; i < h->n_specials; i++) {
        uint32_t token = w->specials[i].token, begin, size;
        if (token >= h->n_tokens || w->begins[token] == w->begins[token + 1])
            return wrong("a special token is out of range or empty");
        begin = w->begins[token];
        size = w->begins[token + 1] - begin;
        /* Texts are cut at special tokens, and what is left must be whole characters. */
        if (utf8_points((const char *)w->bytes + begin, size, NULL) < 0)
            return wrong("a special token is no UTF-8");
    }
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
    if ((code = check_words(w)) || (code = check_maps(w)))
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

gguf_bytes words_shown(const words *w, int32_t token, int hidden, int *strip) {
    gguf_bytes found = words_token(w, token, hidden);
    if (*strip && found.size) {
        *strip = 0;
        if (found.data[0] == ' ')
            found = (gguf_bytes){found.data + 1, found.size - 1};
    }
    return found;
}

int words_is_end(const words *w, int32_t token) {
    for (uint32_t i = 0; i < w->head->n_ends; i++)
        if (w->ends[i] == (uint32_t)token)
            return 1;
    return 0;
}

int32_t words_special(const words *w, const char *text, size_t size) {
    for (uint32_t i = 0; i < w->head->n_specials; i++) {
        gguf_bytes found = words_token(w, (int32_t)w->specials[i].token, 1);
        if (found.size == size && !memcmp(found.data, text, size))
            return (int32_t)w->specials[i].token;
    }
    return -1;
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

/* --- words by their bytes */

int64_t find_word(const words *w, const uint8_t *bytes, uint64_t size) {
    uint32_t low = 0, high = size > w->longest ? 0 : w->head->n_words;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_word *word = w->words + middle;
        int order = memcmp(w->bytes + word->at, bytes, word->size < size ? word->size : size);
        if (!order && word->size == size)
            return middle;
        if (order < 0 || (!order && word->size < size))
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* The first word of a range whose next byte is `byte` or more. Words that end here come first. */
static uint32_t first_from(const words *w, const word_range *r, uint32_t low, uint32_t byte) {
    uint32_t high = r->high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tokenizer_word *word = w->words + middle;
        if (word->size <= r->depth || w->bytes[word->at + r->depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int narrow_words(const words *w, word_range *r, uint8_t byte) {
    r->low = first_from(w, r, r->low, byte);
    r->high = first_from(w, r, r->low, byte + 1u);
    r->depth++;
    return r->low < r->high;
}

int64_t word_at(const words *w, const word_range *r) {
    return r->low < r->high && w->words[r->low].size == r->depth ? (int64_t)r->low : -1;
}

int64_t copy_spaces(uint8_t *to, const uint8_t *from, int64_t size) {
    int64_t made = 0;
    for (int64_t i = 0; i < size; made++)
        if (size - i >= 3 && !memcmp(from + i, space_mark, 3)) {
            to[made] = ' ';
            i += 3;
        } else {
            to[made] = from[i++];
        }
    return made;
}

int write_piece(piece_writer *p, int32_t token) {
    p->was_unknown = 0;
    return token_list_add(p->out, token);
}

int write_unknown(piece_writer *p, const uint8_t *bytes, int64_t size) {
    const tokenizer_head *h = p->w->head;
    int was = p->was_unknown, code = 0;
    if (size == 1 && bytes[0] == ' ') {
        bytes = space_mark;
        size = 3;
    }
    p->was_unknown = 1;
    if (p->w->byte_tokens[0] < 0) /* all bytes have one, or none */
        return was || h->unknown < 0 ? 0 : token_list_add(p->out, h->unknown);
    for (int64_t i = 0; i < size && !code; i++)
        if (p->w->byte_tokens[bytes[i]] >= 0)
            code = token_list_add(p->out, p->w->byte_tokens[bytes[i]]);
    return code;
}
